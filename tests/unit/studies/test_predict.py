"""Predictions for new bags, and the encoder that a model names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_cases import QUICK, cohort, edit_study, read_rows
from typer.testing import CliRunner

from scmil import studies
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags
from scmil.cli import app
from scmil.errors import DataError, OptionError, OutputError, ShapeError, WeightsError


def test_a_table_is_standardised_and_so_are_new_bags(tmp_path: Path) -> None:
    bags = cohort(24, 2)
    x = torch.cat([bag.features for bag in bags]).numpy() * [1, 100, 1, 1, 1, 1, 1, 1] + 1000
    arrays = {"X": x, "bag": np.repeat(np.arange(24), 5), "y": np.array(bags.labels)}
    np.savez(tmp_path / "bags.npz", **arrays)
    data = studies.open_data(tmp_path / "bags.npz")
    trained = studies.train(data, tmp_path / "model", **QUICK, class_weights="balanced")
    assert trained.study["scaling"]["mean"][0] == pytest.approx(1000, abs=2)
    predicted = studies.predict_folder(tmp_path / "model", data.bags, tmp_path / "p.csv").rows
    before = {row["slide_id"]: row["p_1"] for row in read_rows(tmp_path / "model/predictions.csv")}
    assert [float(row["p_1"]) for row in predicted] == pytest.approx(
        [float(before[row["slide_id"]]) for row in predicted], abs=1e-5
    )


@pytest.mark.parametrize(
    ("bag", "message"),
    [
        (Bag("x", torch.ones(2, 9)), "bag 'x' has 9-dimensional features instead of 8"),
        (
            Bag("x", torch.ones(2, 8), provenance={"encoder": "resnet18"}),
            "features of 'resnet18' instead of 'uni' (TRIDENT 'uni_v1' gives",
        ),
        (Bag("x", torch.ones(2, 8), provenance={"mpp": 0.25}), "mpp 0.25 instead of 0.5"),
    ],
)
def test_bags_of_another_provenance_are_rejected_with_the_remedy(
    model_copy: Path, bag: Bag, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ShapeError) as raised:
        studies.predict_folder(model_copy, BagSet([bag]), tmp_path / "p.csv")
    assert message in str(raised.value)
    assert "scmil encode SLIDES --encoder uni --size 256 --mpp 0.5" in str(raised.value)
    assert not (tmp_path / "p.csv").exists()


def test_a_bag_that_fails_is_logged_and_the_others_continue(
    model_copy: Path, tmp_path: Path
) -> None:
    bags = [Bag("good", torch.ones(2, 8)), Bag("bad", torch.full((2, 8), float("nan")))]
    predicted = studies.predict_folder(model_copy, BagSet(bags), tmp_path / "new" / "p.csv")
    assert [row["slide_id"] for row in read_rows(tmp_path / "new" / "p.csv")] == ["good"]
    assert "NaN or infinite" in predicted.failed["bad"]
    assert [row["slide"] for row in read_rows(tmp_path / "new" / "failures.csv")] == ["bad"]


def test_predictions_do_not_replace_a_foreign_table(trained_once: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    out.write_text("slide_id,label\n")
    command = [
        "predict",
        str(trained_once / "model"),
        str(trained_once / "bags"),
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, OutputError)
    assert "labels.csv exists, and was not written by scmil predict" in str(result.exception)
    assert out.read_text() == "slide_id,label\n"
    assert CliRunner().invoke(app, [*command, "--overwrite"]).exit_code == 0
    assert len(read_rows(out)) == 36
    assert CliRunner().invoke(app, command).exit_code == 0  # written by scmil predict before


def test_slides_need_a_model_that_records_its_encoder(tmp_path: Path) -> None:
    export_bags(cohort(24, 2, provenance={}), tmp_path / "bags", "clam")
    data = studies.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    studies.train(data, tmp_path / "model", **QUICK)
    with pytest.raises(DataError, match="does not record how its bags were made"):
        studies.encode_for(tmp_path / "model", [tmp_path / "a.svs"], tmp_path / "work")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record requests to the network and encoders loaded online; every request fails."""
    import socket

    requests: list[str] = []

    def fail(*what: object, **_: object) -> Any:
        requests.append(str(what[0]))
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: fail(address))
    monkeypatch.setattr("scmil.encoding.encoders.weights.download", fail)
    monkeypatch.setattr("scmil.encoding.encoders.load_encoder", record_online(requests))
    return requests


def record_online(requests: list[str]) -> Any:
    from scmil.encoding.encoders import load_encoder

    def call(name: str, *args: Any, **options: Any) -> Any:
        if options.get("offline") is not True:
            requests.append(f"{name}, online")
        return load_encoder(name, *args, **options)

    return call


@pytest.mark.parametrize(
    "name",
    [
        "timm:hf-hub:attacker/evil",
        "timm:hf_hub:attacker/evil",
        "timm:local-dir:/evil",
        "hf-hub:attacker/evil",
        "http://evil.example/model.pt",
        "/evil.pt",
        "timm:hf-hub:attacker/evil, random weights of seed 0",
        "timm:a\nb, random weights of seed 0",
    ],
)
def test_an_unknown_encoder_that_a_model_names_is_not_fetched(
    model_copy: Path, network: list[str], tmp_path: Path, name: str
) -> None:
    model = edit_study(model_copy, contract__encoder=name)
    with pytest.raises(
        WeightsError, match=r"names the encoder .* is not downloaded\. If you trust it.*--encoder"
    ):
        studies.encode_for(model, [tmp_path / "a.svs"], tmp_path / "work")
    with pytest.raises(WeightsError, match="is not downloaded"):
        studies.encode_for(
            model, [tmp_path / "a.svs"], tmp_path / "work", weights=tmp_path / "mine.pth"
        )
    assert network == []


def test_weights_of_a_known_encoder_are_downloaded_only_if_the_user_names_it(
    model_copy: Path, network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("SCMIL_WEIGHTS", raising=False)
    monkeypatch.delenv("SCMIL_OFFLINE", raising=False)
    model = edit_study(model_copy, contract__encoder="resnet18", contract__encoder_digest=None)
    with pytest.raises(
        WeightsError,
        match=r"names the encoder 'resnet18'.*--encoder resnet18; or specify the file: --weights",
    ):
        studies.encode_for(model, [tmp_path / "a.svs"], tmp_path / "work")
    assert network == []
    with pytest.raises(OSError, match="no network in this test"):
        studies.encode_for(model, [tmp_path / "a.svs"], tmp_path / "work", encoder="resnet18")
    assert network[0] == "resnet18, online"


def test_another_encoder_than_that_of_the_model_is_rejected(
    model_copy: Path, network: list[str], tmp_path: Path
) -> None:
    with pytest.raises(
        OptionError, match=r"--encoder 'resnet18': .* was trained on features of 'uni'"
    ):
        studies.encode_for(model_copy, [tmp_path / "a.svs"], tmp_path / "work", encoder="resnet18")
    assert network == []


def test_names_in_a_suggested_command_are_quoted(model_copy: Path, trained_once: Path) -> None:
    from scmil.bags.formats import open_bags

    model = edit_study(model_copy, contract__encoder="x; touch /evil #")
    with pytest.raises(ShapeError, match=r"--encoder 'x; touch /evil #' --size 256"):
        studies.predict_folder(model, open_bags(trained_once / "bags"))
