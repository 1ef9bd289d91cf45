"""`site` of `[data]`: all slides of a site in one test split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scmil.bags.checks import patients_of
from scmil.bags.site_splits import join_groups, read_sites, site_folds, site_holdout
from scmil.bags.splits import Split, check_split, with_validation
from scmil.core.fingerprint import sha256_of_json
from scmil.errors import OptionError
from scmil.studies.settings import DataSettings, ProtocolSettings

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

MEANING = (
    "Splits preserve sites (column {site!r}): all slides of a site are in the same test split. "
    "Validation splits are by patient."
)


def site_groups(data: DataSettings, bags: BagSet) -> list[str] | None:
    """The group of each bag that is not divided between training and test; None without `site`.

    Raises:
        OptionError: There is no label table.
        DataError: A bag has no site.
    """
    if data.site is None:
        return None
    if data.patient == "joined":
        raise OptionError(
            "--site and --patient joined exclude each other, because a joined patient may have "
            "slides of several sites. Omit one of them."
        )
    if data.labels is None:
        raise OptionError(
            f"site = {data.site!r} names a column of the label table, but there is none. Give a "
            "table with the columns slide_id, label and the site."
        )
    return join_groups(read_sites(data.labels, data.site, bags.ids), patients_of(bags))


def site_digest(data: DataSettings, bags: BagSet) -> dict[str, str]:
    """A digest of the sites under the key `sites`; nothing without `site`."""
    groups = site_groups(data, bags)
    return {} if groups is None else {"sites": sha256_of_json(groups)}


def site_note(data: DataSettings, bags: BagSet) -> tuple[str, ...]:
    """A sentence on how sites are split; nothing without `site`."""
    groups = site_groups(data, bags)
    if groups is None:
        return ()
    number = f" There are {len(set(groups))} sites or groups of sites that share patients."
    return (MEANING.format(site=data.site) + number,)


def split_by_site(protocol: ProtocolSettings, bags: BagSet, groups: list[str]) -> list[list[Split]]:
    """The training and test bags of a protocol, with whole groups in the test splits.

    Raises:
        OptionError: The protocol has splits of its own.
        SplitError: There are too few groups.
    """
    if protocol.splits is not None or protocol.kind == "official":
        raise OptionError(
            "[data] site and given splits ([protocol] splits, or kind = 'official') exclude each "
            "other. Remove one of them."
        )
    labels = list(bags.labels)
    if protocol.kind == "holdout":
        return [
            [site_holdout(labels, protocol.test, protocol.seed + 1000 * repeat, groups)]
            for repeat in range(protocol.repeats)
        ]
    return site_folds(labels, protocol.folds, protocol.repeats, protocol.seed, groups)


def holdout_by_site(bags: BagSet, groups: list[str], valid: float, test: float, seed: int) -> Split:
    """A test split of whole groups, and a validation split by patient of the others."""
    labels, patients = list(bags.labels), patients_of(bags)
    split = site_holdout(labels, test, seed, groups)
    check_split(split, bags.ids, patients)
    return with_validation(split, labels, valid / (1 - test), seed, patients)
