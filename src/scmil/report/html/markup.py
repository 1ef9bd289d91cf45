"""Text that is safe where it is put, in HTML, Markdown and LaTeX; and numbers as people read them."""

from __future__ import annotations

import html
import math
import re

MINUS = "\N{MINUS SIGN}"
ABSENT = "\N{EN DASH}"


class Markup(str):
    """Text that is markup already: everything else is escaped when it becomes part of an element."""


def element(tag: str, *children: str | None, **attributes: object) -> Markup:
    """Build an element; children that are plain text, and all attributes, are escaped, so a name can do no harm.

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
    """Put pieces one after the other, escaped unless they are markup."""
    return Markup(
        "".join(piece if isinstance(piece, Markup) else html.escape(piece) for piece in children if piece is not None)
    )


def number(value: float | None, digits: int = 3) -> str:
    """Three decimals, or a dash where there is no number.

    >>> number(0.9), number(float("nan"))
    ('0.900', '–')
    """
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.{digits}f}".replace("-", MINUS)


def change(value: float | None) -> str:
    """A difference carries its sign, and nothing at all has none.

    >>> change(0.0123), change(-0.5), change(-0.0001)
    ('+0.012', '−0.500', '0.000')
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    return "0.000" if round(value, 3) == 0 else f"{value:+.3f}".replace("-", MINUS)


def p_value(p: float | None) -> str:
    """As many digits as decide something.

    >>> p_value(0.4412), p_value(0.0312), p_value(0.0481), p_value(0.0042), p_value(1e-9)
    ('0.44', '0.03', '0.048', '0.004', '< 0.001')
    """
    if p is None or not math.isfinite(p):
        return ABSENT
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.01 or 0.045 <= p < 0.055 else f"{p:.2f}"


def markdown(text: str) -> str:
    """Escape what Markdown would read as markup, in a table too.

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
    "[": "{[}",  # after a line's end, [ and * would belong to it
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
    r"""Escape what LaTeX would read as a command, and write the signs that plain LaTeX fonts lack as mathematics.

    >>> print(latex("50 % of A_1 & λ = −1"))
    50 \% of A\_1 \& $\lambda$ = $-$1
    """
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
