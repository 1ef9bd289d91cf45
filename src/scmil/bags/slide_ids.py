"""Ids of slides from file names, and patients from TCGA barcodes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

SUFFIXES = re.compile(
    r"\.(svs|tiff?|ome|ndpi|mrxs|scn|bif|vsi|vms|vmu|svslide|czi|qptiff|dcm|zarr"
    r"|h5|hdf5|pt|pth|npy|npz|csv|safetensors|jpe?g|png)$",
    re.IGNORECASE,
)
BARCODE = re.compile(r"(TCGA-\w{2}-\w{4})(-.*)?")


def slide_id(text: str) -> str:
    """Return the id of a slide from its file name or path, without folders and known suffixes.

    >>> slide_id("data/CAMELYON16/tumor_001.tif"), slide_id("TCGA-05.1b2c-3d.svs.h5")
    ('tumor_001', 'TCGA-05.1b2c-3d')
    """
    name = text.strip().replace("\\", "/").rstrip("/").rpartition("/")[2]
    while (shorter := SUFFIXES.sub("", name)) and shorter != name:
        name = shorter
    return name


def patient_of_barcode(bag_id: str) -> str | None:
    """Return the patient in a TCGA barcode; None if the id is not a barcode.

    >>> patient_of_barcode("TCGA-05-4244-01Z-00-DX1"), patient_of_barcode("tumor_001")
    ('TCGA-05-4244', None)
    """
    match = BARCODE.fullmatch(bag_id)
    return match[1] if match else None


def other_normalisation(ids: Iterable[str], rows: Iterable[str]) -> dict[str, str]:
    """Return the ids that match a row only after Unicode normalisation, each with its row.

    Letters with accents are one character (NFC) or two (NFD, as macOS writes them into file
    names): they look the same.

    >>> nfd, nfc = "Mu\u0308ller", "M\u00fcller"
    >>> other_normalisation([nfd, "Schmidt"], [nfc, "Schmidt"]) == {nfd: nfc}
    True
    """
    exact = set(rows)
    normal = {unicodedata.normalize("NFC", row): row for row in exact}
    unmatched = [bag_id for bag_id in ids if slide_id(bag_id) not in exact]
    matches = {
        bag_id: normal.get(unicodedata.normalize("NFC", slide_id(bag_id))) for bag_id in unmatched
    }
    return {bag_id: row for bag_id, row in matches.items() if row is not None}
