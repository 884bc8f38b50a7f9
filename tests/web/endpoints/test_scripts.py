"""The dashboard's modules as one script."""

from countersink.web.endpoints.pages import script


def test_a_module_comes_after_those_that_it_imports_and_each_once() -> None:
    found = script(
        {
            "app.js": 'import { one, two } from "./leaf.js";\n'
            'import { three } from "./mid.js";\ntwo(one + three);\n',
            "mid.js": 'import { one } from "./leaf.js";\nexport const three = one + 2;\n',
            "leaf.js": "export const one = 1;\nexport function two() {\n  // a comment\n"
            '  return "// none";\n}\n',
            "other.js": "alert(1);\n",
        },
        "app.js",
    )
    assert found == (
        '"use strict";\n{\n'
        'const one = 1;\nfunction two() {\n  return "// none";\n}\n\n'
        "const three = one + 2;\n\n"
        "two(one + three);\n\n}\n"
    )
