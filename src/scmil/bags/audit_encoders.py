"""Audit of features that another tool computed: which encoder of scmil gives the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scmil.bags.audit_checks import Finding
from scmil.bags.audit_facts import BagFacts
from scmil.bags.encoder_names import STAMP_MPP, shares_only_the_name, statement_of, tool_of


def find_foreign_encoders(facts: Sequence[BagFacts]) -> Iterator[Finding]:
    """State what the encoder names of other tools mean, and find STAMP's default resolution."""
    slides: dict[tuple[str, bool], list[str]] = {}
    coarse: list[str] = []
    for fact in facts:
        if text := statement_of(fact.provenance):
            only_name = shares_only_the_name(fact.provenance)
            slides.setdefault((text, only_name), []).append(fact.id)
        mpp = fact.provenance.get("mpp")
        if (
            tool_of(fact.provenance) == "stamp"
            and isinstance(mpp, int | float)
            and abs(mpp / STAMP_MPP - 1) < 0.01
        ):
            coarse.append(fact.id)
    for (text, only_name), ids in slides.items():
        remedy = (
            "Do not mix them with features that have the same name in another tool."
            if only_name
            else "They can be used together with features of that encoder."
        )
        yield Finding("warning" if only_name else "note", "encoder-name", text, remedy, tuple(ids))
    if coarse:
        yield Finding(
            "note",
            "resolution",
            "tiles of 1.14 microns per pixel, the default of STAMP for every encoder",
            "Most encoders expect 0.5; see scmil encoder NAME.",
            tuple(coarse),
        )
