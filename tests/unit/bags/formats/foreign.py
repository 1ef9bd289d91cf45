"""Folders as other tools write them, made here without our code: names, data sets, types, chunks
and attributes.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

IDS = ("007", "tumor_042")
ROWS = {"007": 3, "tumor_042": 5}
DIM = 6


def features(bag_id: str, dtype: type = np.float32) -> NDArray[Any]:
    rows = ROWS[bag_id]
    return (np.arange(rows * DIM).reshape(rows, DIM) / 8 + len(bag_id)).astype(dtype)


def coords(bag_id: str, step: int = 512) -> NDArray[np.int64]:
    at = np.arange(ROWS[bag_id], dtype=np.int64)
    return np.stack([at % 2, at // 2], axis=1) * step + 1024


def clam(root: Path, pt: bool = True, h5: bool = True) -> Path:
    for bag_id in IDS:
        if h5:
            (root / "h5_files").mkdir(parents=True, exist_ok=True)
            with h5py.File(root / "h5_files" / f"{bag_id}.h5", "w") as file:
                file.create_dataset(
                    "features", data=features(bag_id), chunks=(32, DIM), maxshape=(None, DIM)
                )
                file.create_dataset(
                    "coords",
                    data=coords(bag_id).astype(np.int32),
                    chunks=(32, 2),
                    maxshape=(None, 2),
                )
        if pt:
            (root / "pt_files").mkdir(parents=True, exist_ok=True)
            torch.save(torch.from_numpy(features(bag_id)), root / "pt_files" / f"{bag_id}.pt")
    return root


def clam_patches(root: Path, level: int = 1, downsample: float = 2.0, **more: Any) -> None:
    (root / "patches").mkdir(parents=True, exist_ok=True)
    for bag_id in IDS:
        with h5py.File(root / "patches" / f"{bag_id}.h5", "w") as file:
            data = file.create_dataset(
                "coords", data=coords(bag_id), chunks=(1, 2), maxshape=(None, 2)
            )
            data.attrs.update(
                patch_size=256, patch_level=level, downsample=(downsample, downsample), name=bag_id
            )
            data.attrs.update(
                downsampled_level_dim=(4000, 3000),
                level_dim=(4000, 3000),
                save_path="patches",
                **more,
            )


def clam_old_patches(root: Path, level: int) -> None:
    (root / "patches").mkdir(parents=True, exist_ok=True)
    for bag_id in IDS:
        with h5py.File(root / "patches" / f"{bag_id}.h5", "w") as file:
            images = file.create_dataset("imgs", data=np.zeros((ROWS[bag_id], 4, 4, 3), np.uint8))
            images.attrs.update(patch_level=level, wsi_name=bag_id, downsample=(4.0, 4.0))
            file.create_dataset("coords", data=coords(bag_id).astype(np.int32))


def trident_attributes(bag_id: str) -> dict[str, Any]:
    return {
        "patch_size": 256,
        "patch_size_level0": 512,
        "level0_magnification": 40,
        "target_magnification": 20,
        "overlap": 0,
        "name": bag_id,
        "savetodir": "job/20x_256px_0px_overlap",
        "level0_width": 40000,
        "level0_height": 30000,
    }


def trident(
    job: Path,
    encoder: str = "uni_v1",
    tiling: str = "20x_256px_0px_overlap",
    dtype: type = np.float32,
) -> Path:
    place = job / tiling / f"features_{encoder}"
    place.mkdir(parents=True, exist_ok=True)
    for bag_id in IDS:
        with h5py.File(place / f"{bag_id}.h5", "w") as file:
            data = file.create_dataset(
                "features", data=features(bag_id, dtype), chunks=(1, DIM), maxshape=(None, DIM)
            )
            data.attrs.update(name=bag_id, savetodir=str(tiling), encoder=encoder)
            at = file.create_dataset(
                "coords", data=coords(bag_id), chunks=(1, 2), maxshape=(None, 2)
            )
            at.attrs.update(trident_attributes(bag_id))
    trident_patches(job / tiling)
    return place


def trident_patches(tiling: Path) -> None:
    (tiling / "patches").mkdir(parents=True, exist_ok=True)
    for bag_id in IDS:
        with h5py.File(tiling / "patches" / f"{bag_id}_patches.h5", "w") as file:
            data = file.create_dataset(
                "coords", data=coords(bag_id), chunks=(1, 2), maxshape=(None, 2)
            )
            data.attrs.update(trident_attributes(bag_id))


STAMP = {
    "stamp_version": "2.3.0",
    "extractor": "mahmood-uni2",
    "unit": "um",
    "tile_size_um": 256.0,
    "tile_size_px": 224,
    "code_hash": "0a1b2c3d",
    "feat_type": "tile",
}


def stamp(
    folder: Path, attributes: Mapping[str, Any] = STAMP, step: float = 256.0, name: str = "feats"
) -> Path:
    for bag_id, below in zip(IDS, ("", "site_b"), strict=True):
        (folder / below).mkdir(parents=True, exist_ok=True)
        with h5py.File(folder / below / f"{bag_id}.h5", "w") as file:
            file[name] = features(bag_id, np.float16)
            if name == "feats":
                file["coords"] = ((coords(bag_id, 1) - 1024) * step).astype(np.float32)
            file.attrs.update(attributes)
    return folder


def torchmil(root: Path, suffix: str = ".npy", encoder: str | None = None) -> Path:
    inside = f"features/features_{encoder}" if encoder else "features"
    for bag_id, label in zip(IDS, (0, 1), strict=True):
        arrays = {
            inside: ("features", features(bag_id)),
            "labels": ("labels", np.array([label])),
            "patch_labels": ("inst_labels", np.eye(1, ROWS[bag_id], dtype=np.int64)[0] * label),
            "coords": ("coords", coords(bag_id)),
        }
        for folder, (key, values) in arrays.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            if suffix == ".npy":
                np.save(root / folder / f"{bag_id}.npy", values)
            else:
                with h5py.File(root / folder / f"{bag_id}.h5", "w") as file:
                    file[key] = values
    return root


def torchmil_published(root: Path) -> Path:
    torchmil(root / "patches_512", encoder="UNI")
    (root / "splits.csv").write_text("bag_name,split\n007,train\ntumor_042,test\n")
    return root


def dsmil(folder: Path, index: bool = True) -> Path:
    lines = ["0,label"]
    for bag_id, name, label in zip(IDS, ("0-normal", "1-tumor"), (0, 1), strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = [
            ",".join(map(str, range(DIM))),
            *(",".join(f"{v:.4f}" for v in row) for row in features(bag_id)),
        ]
        (folder / name / f"{bag_id}.csv").write_text("\n".join(rows) + "\n")
        lines.append(f"datasets/{folder.name}/{name}/{bag_id}.csv,{label}")
    if index:
        (folder / f"{folder.name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def slideflow(folder: Path, tile_um: Any = 128) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for bag_id in IDS:
        torch.save(torch.from_numpy(features(bag_id)), folder / f"{bag_id}.pt")
        np.savez(folder / f"{bag_id}.index.npz", coords(bag_id))
    config = {
        "extractor": {"class": "ResNetFeatures", "kwargs": {}},
        "normalizer": None,
        "num_features": DIM,
    }
    (folder / "bags_config.json").write_text(
        json.dumps({**config, "tile_px": 256, "tile_um": tile_um})
    )
    return folder


def histossl(folder: Path, beside: bool = False, bare: bool = False) -> Path:
    for bag_id in IDS:
        (folder / bag_id).mkdir(parents=True, exist_ok=True)
        address = np.column_stack([np.full(ROWS[bag_id], 16), coords(bag_id, 1)]).astype(np.float32)
        values = features(bag_id) if bare else np.hstack([address, features(bag_id)])
        np.save(folder / bag_id / "features.npy", values)
        if beside:
            np.save(folder / bag_id / "coords.npy", address.astype(np.int64))
    return folder


def dtfd(folder: Path, protocol: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        bag_id: [
            {"feature": row, "file_name": f"{i}.png"} for i, row in enumerate(features(bag_id))
        ]
        for bag_id in IDS
    }
    (folder / "mDATA_train.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    return folder


def arrays(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(torch.from_numpy(features("007")).half(), folder / "007.pt")
    np.save(folder / "tumor_042.npy", features("tumor_042").astype(np.float64))
    return folder
