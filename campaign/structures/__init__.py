"""Generators of valid containers with an unusual structure.

`GENERATORS` maps a suffix to a function. It takes a valid file of that format (some ignore it) and
random numbers, and returns a file and a description of what is unusual about it. The same seed
gives the same file.
"""

from __future__ import annotations

from structures.annotations import asap_file, geojson_file
from structures.arrays import npy_file, npz_file
from structures.hdf5 import h5_file
from structures.images import jpeg_file, png_file
from structures.json_file import json_file
from structures.mat import mat_file
from structures.pickles import pickle_file
from structures.safetensors_file import safetensors_file
from structures.tables import csv_file, svm_file
from structures.tiff import tiff_file
from structures.toml_file import toml_file
from structures.torch_file import pt_file
from structures.values import Generator
from structures.xlsx import xlsx_file

GENERATORS: dict[str, Generator] = {
    ".json": json_file,
    ".toml": toml_file,
    ".csv": csv_file,
    ".tsv": csv_file,
    ".svm": svm_file,
    ".xlsx": xlsx_file,
    ".npy": npy_file,
    ".npz": npz_file,
    ".mat": mat_file,
    ".safetensors": safetensors_file,
    ".h5": h5_file,
    ".pt": pt_file,
    ".pth": pt_file,
    ".pkl": pickle_file,
    ".geojson": geojson_file,
    ".xml": asap_file,
    ".png": png_file,
    ".jpg": jpeg_file,
    ".tif": tiff_file,
    ".svs": tiff_file,
}
