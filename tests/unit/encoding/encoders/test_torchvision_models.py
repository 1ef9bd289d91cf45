"""torchvision's networks with torchvision's published weights, whether or not its compiled part can
be loaded.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scmil.encoding.encoders import card_of, load_encoder, torchvision_models
from scmil.encoding.encoders.torchvision_models import torchvision
from scmil.errors import MissingExtraError

# Our name, torchvision's, the weights', and the layer whose mean over space are the features.
MODELS = [
    ("resnet18", "resnet18", "ResNet18_Weights", "layer4"),
    ("swin", "swin_t", "Swin_T_Weights", "permute"),
    ("resnet50-trunc", "resnet50", "ResNet50_Weights", "layer3"),
]


@pytest.mark.parametrize(("ours", "theirs", "published", "layer"), MODELS)
def test_the_published_file_is_torchvisions(
    ours: str, theirs: str, published: str, layer: str
) -> None:
    checkpoint = card_of(ours).weights
    assert checkpoint.url == getattr(torchvision().models, published).IMAGENET1K_V1.url
    assert checkpoint.file == f"{theirs}-{checkpoint.sha256[:8]}.pth"  # as torch.hub checks it


@pytest.mark.parametrize(("ours", "theirs", "published", "layer"), MODELS)
def test_features_are_what_the_whole_network_has_before_its_head(
    ours: str, theirs: str, published: str, layer: str, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    whole = getattr(torchvision().models, theirs)().eval()
    torch.save(whole.state_dict(), tmp_path / "own.pth")
    seen: list[torch.Tensor] = []
    whole.get_submodule(layer).register_forward_hook(
        lambda module, given, result: seen.append(result)
    )
    encoder = load_encoder(ours, tmp_path / "own.pth", precision="float32")
    tiles = torch.randint(256, (1, 224, 224, 3), dtype=torch.uint8)
    x = (tiles / 255 - torch.tensor(encoder.mean)) / torch.tensor(encoder.std)
    with torch.no_grad():
        whole(x.permute(0, 3, 1, 2))
    assert torch.allclose(encoder(tiles), seen[0].mean((2, 3)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs", "layer", "side"),
    [
        ("lunit-rn50-bt", "resnet50", "layer4", 224),
        ("retccl", "resnet50", "layer4", 256),
        ("kimianet", "densenet121", "features", 128),
    ],
)
def test_networks_of_pathology_return_the_mean_of_their_last_stage(
    ours: str, theirs: str, layer: str, side: int, tmp_path: Path
) -> None:
    torch.manual_seed(4)
    whole = getattr(torchvision().models, theirs)().eval()
    state = {k: v for k, v in whole.state_dict().items() if not k.startswith(("fc.", "classifier"))}
    if ours == "kimianet":  # saved from nn.DataParallel, with its own classifier
        state = {k.replace("features.", "module.model.0."): v for k, v in state.items()}
        state["module.fc_4.weight"], state["module.fc_4.bias"] = (
            torch.ones(30, 1024),
            torch.ones(30),
        )
    torch.save(state, tmp_path / "own.pth")
    seen: list[torch.Tensor] = []
    whole.get_submodule(layer).register_forward_hook(
        # A copy: torchvision's DenseNet changes its features in place.
        lambda module, given, result: seen.append(result.clone())
    )
    encoder = load_encoder(ours, tmp_path / "own.pth", precision="float32")
    tiles = torch.randint(256, (1, side, side, 3), dtype=torch.uint8)
    mean, std = (
        torch.tensor(values) for values in (card_of(ours).input.mean, card_of(ours).input.std)
    )
    with torch.no_grad():
        whole(((tiles / 255 - mean) / std).permute(0, 3, 1, 2))
    assert torch.allclose(encoder(tiles), seen[0].mean((2, 3)), rtol=1e-3, atol=1e-4)
    assert seen[0].mean() != 0


def test_torchvision_is_there_with_or_without_its_compiled_part() -> None:
    assert torchvision() is torchvision()
    assert torchvision().models.resnet18


def test_another_failure_of_torchvision_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(torchvision_models, "import_extra", broken)
    with pytest.raises(RuntimeError, match="something else"):
        torchvision.__wrapped__()


def test_a_missing_torchvision_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[encoders\]'"):
        torchvision.__wrapped__()


def test_other_uses_of_scmil_do_not_wait_for_torchvision() -> None:
    code = (
        "import sys, scmil.encoders as e; e.encoder_status(); "
        "print('torchvision' in sys.modules, 'timm' in sys.modules)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout == "False False\n"
