"""The golden numbers of tests/data/golden, and the networks they are compared with.

The weights are built from the authors' names and loaded with the tables of
`scmil.models.official_weights`, which `scmil import-model` uses too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from golden_numbers import GOLDEN, Golden
from torch import Tensor

from scmil.models.official_weights import Choices


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Run with or without oneDNN; the golden numbers were made without it."""
    before, *_ = torch.backends.mkldnn.set_flags(_enabled=enabled)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(_enabled=before)


@dataclass(frozen=True)
class Case:
    """A file, the aggregator it belongs to, and how its weights and groups are read."""

    file: str
    aggregator: str
    choices: Choices = field(default_factory=Choices)
    rename: Mapping[str, str] = field(default_factory=dict)  # prefixes of names in a checkpoint
    training: bool = False  # whether the model is in training mode

    def checkpoint(self, golden: Golden) -> dict[str, Tensor]:
        """The tensors with the names that they have in the authors' files."""
        renamed = {}
        for name, tensor in golden.tensors.items():
            first, dot, rest = name.partition(".")
            renamed[self.rename.get(first, first) + dot + rest] = tensor
        return renamed


DTFD_FILES = {"dimReduction": "dim_reduction", "attCls": "att_classifier"}
MINETS = {
    "bag": "mi-net",
    "instance": "mi-net-instance",
    "ds": "mi-net-ds",
    "rc": "mi-net-rc",
}
POOLINGS = {"max": "max", "ave": "mean", "lse": "lse"}
WITHOUT_OWN_LOSS = Choices(options={"diversity_weight": 0.0, "triplet_weight": 0.0})
CASES = [
    Case("abmil", "abmil"),
    Case("abmil_gated", "abmil-gated"),
    Case("scmil_abmil", "abmil"),
    Case("scmil_abmil_gated", "abmil-gated"),
    Case("scmil_abmil_sc", "abmil"),
    Case("scmil_abmil_gated_sc", "abmil-gated"),
    Case("dsmil_1class", "dsmil"),
    Case("dsmil_1class_linear_query", "dsmil"),
    Case("dsmil_2class", "dsmil"),
    Case("dsmil_2class_linear_query", "dsmil"),
    Case("dsmil_2class_passing_v", "dsmil"),
    Case("scmil_dsmil_sc_1class", "dsmil"),
    Case("scmil_dsmil_sc_2class", "dsmil"),
    Case("transmil", "transmil"),
    Case("transmil_small", "transmil"),
    Case("dtfd_afs", "dtfd-afs", rename=DTFD_FILES),
    Case("dtfd_maxmins", "dtfd-maxmin", rename=DTFD_FILES),
    Case("ilra_rank1", "ilra"),
    Case("ilra_rank4", "ilra"),
    Case("stamp_vit", "transformer", Choices(options={"heads": 4})),
    Case("stamp_vit_512", "transformer"),
    Case("rrt_mil", "rrt"),
    Case("rrt_mil_c16_r50", "rrt", Choices(options={"activation": "tanh", "shortcut": True})),
    Case("wikg", "wikg"),
    Case("wikg_512", "wikg"),
    Case("s4mil_gelu", "s4mil", Choices(options={"embed.activation": "gelu"})),
    Case("s4mil_relu", "s4mil"),
    Case("patch_gcn", "patch-gcn"),
    Case("patch_gcn_pyg2", "patch-gcn"),
    *(
        Case(
            f"clam_{kind}{variant}",
            f"clam-{kind}",
            Choices(options={"dropout": 0.0, "subtyping": "subtyping" in variant}),
        )
        for kind in ("sb", "mb")
        for variant in ("", "_ungated", "_subtyping", "_subtyping_3classes")
    ),
    Case("clam_sb_svm", "clam-sb", Choices(options={"dropout": 0.0, "instance_loss": "svm"})),
    Case(
        "clam_mb_subtyping_svm",
        "clam-mb",
        Choices(options={"dropout": 0.0, "instance_loss": "svm", "subtyping": True}),
    ),
    Case("acmil_ga", "acmil"),
    Case("acmil_ga_1branch", "acmil"),
    Case("acmil_ga_mask_all", "acmil", Choices(options={"mask_ratio": 1.0}), training=True),
    Case("attrimil", "attrimil", Choices(options={"rank_weight": 0.0})),
    Case("attrimil_3classes", "attrimil", Choices(options={"rank_weight": 0.0})),
    Case("attrimil_rank_loss", "attrimil", training=True),
    Case("dgr_mil", "dgr-mil", WITHOUT_OWN_LOSS),
    Case("dgr_mil_512", "dgr-mil", WITHOUT_OWN_LOSS),
    Case(
        "dgr_mil_losses",
        "dgr-mil",
        Choices(options={"dropout": 0.0, "attention_dropout": 0.0}),
        training=True,
    ),
    *(
        Case(f"mi_net_{kind}_{theirs}", name, Choices(pooling=ours))
        for kind, name in MINETS.items()
        for theirs, ours in POOLINGS.items()
    ),
]
LAYERS = sorted(
    path.stem
    for kind in ("sc_layer_*", "rrt_encoder*", "s4d_layer_*")
    for path in GOLDEN.glob(f"{kind}.npz")
)
# The options of `RRTEncoder` for the files of RRT-MIL's encoder.
ENCODERS: dict[str, dict[str, Any]] = {
    "rrt_encoder": {},
    "rrt_encoder_crmsa_only": {"summaries": 1, "regional": False},
    "rrt_encoder_no_epeg": {"kernel": 0},
    "rrt_encoder_rmsa_only": {"cross_regional": False},
    "rrt_encoder_shortcut_mlp": {
        "kernel": 9,
        "shortcut": True,
        "summary_heads": 1,
        "summary_mlp": True,
    },
}
# Why our networks cannot give the numbers of these files.
NOT_OFFERED = {
    "dtfd_maxs": "DTFD's MaxS, which hands on the largest alone, is not offered",
    "stamp_vit_mask": "STAMP's mask hides the class token from the tiles; no bag is padded here",
    "wikg_sage_mean": "WiKG's ablations of aggregation and readout are not offered",
    "transmil_nystrom_0_0_9": "the pinned Nyström library cuts the padding off the wrong end",
}


# Entries of the files that are not compared on their own, by the start of their names, and why.
NOT_COMPARED = {
    "meta": "describes the file",
    "weight_": "of the rule for the weights, which has a test of its own",
    "w/": "weights",
    "x_": "inputs",
    "label": "inputs",
    "xy_": "inputs; STAMP's positions take part only with ALiBi, which is not offered",
    "censored_": "inputs",
    "features_": "pooled vectors of CLAM, which the gradient of the classifier contains",
    "bag_features_": "pooled vectors of DSMIL, which the gradient of the classifier contains",
    "bag_loss_": "a term of the loss, which is compared",
    "slide_loss_": "a term of the loss, which is compared",
    "branch_loss_": "a term of the loss, which is compared",
    "instance_loss_": "a term of the loss, which is compared",
    "diversity_loss_": "a term of the loss, which is compared",
    "triplet_loss_": "a term of the loss, which is compared",
    "spatial_loss_": "a term of the loss, which is compared",
    "rank_loss": "a term of the loss, which is compared",
    "instance_targets_": "of the instance loss of CLAM, which is compared as a term of the loss",
    "instance_predictions_": "of the instance loss of CLAM, for the authors' log",
    "nearest": "neighbours of AttriMIL, which its spatial loss contains",
    "attention_raw_": "scores of RRT before the softmax, which is compared",
    "instances_": "instances of DGR-MIL between its layers",
    "handed_on_": "what tier 1 of DTFD hands on, which the gradient of tier 2 contains",
    "instance_probability_": "which tiles DTFD hands on follows from it",
    "edge_index_": "compared in tests/unit/models/aggregators/test_patch_gcn.py",
    "neighbours_": "compared in tests/unit/models/aggregators/test_wikg.py",
    "hazards_": "the sigmoid of the logits, which are compared",
    "survival_": "a product of the hazards",
    "first_conv_": "tiles of Patch-GCN between its layers",
    "loss_alpha_0.4_": "a weight of censored patients that is not offered",
}


# The same for entries of one file.
NOT_COMPARED_IN = {
    "acmil_ga_1branch": ("branch_logits_",)  # the classifier of a single branch is never trained
}
# Aggregators whose authors' code was not found; tests/golden/test_formulas.py compares them with
# the formulas of the papers, written out instance by instance.
WITHOUT_CODE = ("mean", "max", "additive", "gnn-mil", "dp-minn", "nlmil", "anlmil")
