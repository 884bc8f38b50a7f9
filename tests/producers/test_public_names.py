"""What apps may rely on: options, and how little an import costs."""

from typing import get_type_hints

import pytest

from countersink.producers import Options, Producer
from countersink.producers.options import ProducerOptions
from tests.producers.helpers import imported


def test_constructor_takes_each_option_with_its_default() -> None:
    assert get_type_hints(ProducerOptions) == get_type_hints(Options)
    with pytest.raises(TypeError, match="no_such_option"):
        Producer("redis://127.0.0.1:1/0", no_such_option=1)  # type: ignore[call-arg]


def test_import_brings_redis_and_little_else() -> None:
    # Each of these is small; a driver, a codec or multiprocessing would be in here.
    allowed = {"dataclasses", "fcntl", "encodings.idna", "stringprep", "unicodedata"}
    assert imported("countersink.producers", after="redis") <= allowed
    assert imported("countersink.producers.middleware", after="countersink.producers") == set()
