"""The dashboard's modules as one script."""

import pytest

from countersink.web.endpoints.pages import script

LEAF = 'export const one = 1;\nexport function two() {\n  // a comment\n  return "// none";\n}\n'


def test_a_module_comes_after_those_that_it_imports_and_each_once() -> None:
    found = script(
        {
            "app.js": 'import { one, two as zwei } from "./leaf.js";\n'
            'import { three } from "./mid.js";\nzwei(one + three);\n',
            "mid.js": 'import { one } from "./leaf.js";\nexport const three = one + 2;\n',
            "leaf.js": LEAF,
            "other.js": "alert(1);\n",
        },
        "app.js",
    )
    assert found == (
        '"use strict";\n{\n'
        "const module_leaf = (() => {\nconst one = 1;\nfunction two() {\n"
        '  return "// none";\n}\nreturn { one, two };\n})();\n'
        "const module_mid = (() => {\nconst { one } = module_leaf;\nconst three = one + 2;\n"
        "return { three };\n})();\n"
        "const module_app = (() => {\nconst { one, two: zwei } = module_leaf;\n"
        "const { three } = module_mid;\nzwei(one + three);\nreturn {  };\n})();\n}\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "export default 1;\n",
        "export let one = 1;\n",
        'import * as all from "./leaf.js";\n',
        'import one from "./leaf.js";\n',
        'import { one } from "https://elsewhere.example/leaf.js";\n',
        'import { one } from "./missing.js";\n',
        'import { one } from "./app.js";\n',
    ],
)
def test_what_is_written_in_another_way_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"app\.js"):
        script({"app.js": text, "leaf.js": LEAF}, "app.js")
