"""Escaping of names in HTML, Markdown and LaTeX."""

from __future__ import annotations

from scmil.report.html.markup import element, latex, markdown


def test_latex_commands_are_escaped() -> None:
    assert latex("a\\b{c}$&#%_^~") == (
        r"a\textbackslash{}b\{c\}\$\&\#\%\_\textasciicircum{}\textasciitilde{}"
    )
    assert latex("[x]") == "{[}x{]}"  # a line's end would take it for its own


def test_markdown_syntax_is_escaped() -> None:
    assert markdown("a|b\n# [c](d) `e` <i>") == r"a\|b \# \[c\](d) \`e\` &lt;i&gt;"


def test_attributes_are_escaped() -> None:
    assert element("p", title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;"></p>'
