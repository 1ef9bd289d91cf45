"""Escape text for HTML, Markdown and LaTeX, and format numbers."""

from __future__ import annotations

import html
import math
import re

MINUS = "\N{MINUS SIGN}"
ABSENT = "\N{EN DASH}"


class Markup(str):
    """Text that is markup; all other text is escaped when it is inserted into an element."""


def element(tag: str, *children: str | None, **attributes: object) -> Markup:
    """Build an HTML element; children that are plain text and all attributes are escaped.

    >>> element("td", "<script>", element("b", "1 < 2"), class_="wide", data_sort=None)
    '<td class="wide">&lt;script&gt;<b>1 &lt; 2</b></td>'
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: str | None) -> Markup:
    """Concatenate pieces, escaped unless they are markup."""
    return Markup(
        "".join(
            piece if isinstance(piece, Markup) else html.escape(piece)
            for piece in children
            if piece is not None
        )
    )


def format_number(value: float | None, digits: int = 3) -> str:
    """Three decimals, or a dash if there is no number.

    >>> format_number(0.9), format_number(float("nan")), format_number(-0.0001)
    ('0.900', '–', '0.000')
    """
    return (
        ABSENT
        if value is None or not math.isfinite(value)
        else f"{round(value, digits) + 0.0:.{digits}f}".replace("-", MINUS)  # no minus zero
    )


def change(value: float | None) -> str:
    """A difference with its sign; zero has none.

    >>> change(0.0123), change(-0.5), change(-0.0001)
    ('+0.012', '−0.500', '0.000')
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    return "0.000" if round(value, 3) == 0 else f"{value:+.3f}".replace("-", MINUS)


def with_minus(sentence: str) -> str:
    """A sentence whose negative numbers have a minus sign; hyphens of names stay.

    >>> with_minus("ABMIL-2: 95 % interval -0.012 to +0.021")
    'ABMIL-2: 95 % interval −0.012 to +0.021'
    """
    return re.sub(r"(?<= )-(?=\d)", MINUS, sentence)


def p_value(p: float | None) -> str:
    """A p-value with two or three decimals, as many as are needed to compare it with 0.05.

    >>> p_value(0.4412), p_value(0.0312), p_value(0.0481), p_value(0.0042), p_value(1e-9)
    ('0.44', '0.03', '0.048', '0.004', '< 0.001')
    """
    if p is None or not math.isfinite(p):
        return ABSENT
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.01 or 0.045 <= p < 0.055 else f"{p:.2f}"


def p_equals(p: float | None) -> str:
    """A p-value for running text.

    >>> p_equals(0.0312), p_equals(1e-9)
    ('p = 0.03', 'p < 0.001')
    """
    return f"p = {p_value(p)}".replace("= <", "<")


def markdown(text: str) -> str:
    """Escape text for Markdown, also inside of a table.

    >>> markdown("a|b <i> *c*")
    'a\\\\|b &lt;i&gt; \\\\*c\\\\*'
    """
    return html.escape(re.sub(r"([\\`*_\[\]|#~])", r"\\\1", " ".join(text.split())), quote=False)


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "[": "{[}",  # after the end of a line, [ and * would be its arguments
    "]": "{]}",
    "*": "{*}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≥": r"$\ge$",
    "≤": r"$\le$",
    "Δ": r"$\Delta$",
    "²": "$^2$",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "φ": r"$\varphi$",
    MINUS: "$-$",
    ABSENT: "--",
    "\N{EM DASH}": "---",
    "\N{HORIZONTAL ELLIPSIS}": r"\dots{}",
}


def latex(text: str) -> str:
    r"""Escape text for LaTeX; symbols that plain fonts lack are written in mathematical mode.

    >>> print(latex("50 % of A_1 & λ = −1"))
    50 \% of A\_1 \& $\lambda$ = $-$1
    """
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
