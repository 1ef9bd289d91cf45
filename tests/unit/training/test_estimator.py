from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from scmil import Bag, Recipe, build_model, fit, predict
from scmil.bags.bag import BagSet
from scmil.bags.scaling import moments
from scmil.errors import (
    BagError,
    DataError,
    MissingExtraError,
    OptionError,
    ShapeError,
    UnknownNameError,
)
from scmil.training.estimator import SCMILClassifier

SMALL: dict[str, Any] = dict(
    sparse_coding={"atoms": 16, "layers": 2}, embed=[9], epochs=5, learning_rate=0.01
)


def matrices(bags: int = 16, dim: int = 6) -> tuple[list[NDArray[np.float64]], list[str]]:
    """Bags of one to four instances; where there is a tumour, every other feature is large."""
    generator = np.random.default_rng(0)
    x = [generator.normal(size=(1 + i % 4, dim)) for i in range(bags)]
    y = ["tumour" if i // 2 % 2 else "normal" for i in range(bags)]
    for features, label in zip(x, y, strict=True):
        features[:, ::2] += 4 * (label == "tumour")
    return x, y


def as_bag_set() -> tuple[BagSet, list[str]]:
    x, y = matrices()
    return BagSet(
        Bag(f"slide {i}", torch.tensor(features).float()) for i, features in enumerate(x)
    ), y


def fitted(**changes: Any) -> SCMILClassifier:
    return SCMILClassifier(**{**SMALL, **changes}).fit(*matrices())


def test_predictions_are_in_the_labels_of_the_user() -> None:
    x, y = matrices()
    classifier = fitted()
    assert classifier.classes_.tolist() == ["normal", "tumour"]
    assert classifier.predict(x).tolist() == y
    assert classifier.score(x, y) == 1


def test_the_classifier_equals_scaling_building_fitting_and_predicting_by_hand() -> None:
    x, y = matrices()
    bags = [
        Bag(str(i), torch.tensor(f).float(), label=int(c == "tumour"))
        for i, (f, c) in enumerate(zip(x, y))
    ]
    bags = [moments(bags).apply_to_bag(bag) for bag in bags]
    model = build_model(6, 2, "abmil-gated", SMALL["sparse_coding"], embed=[9], seed=3)
    history = fit(model, bags, recipe=Recipe(epochs=5, learning_rate=0.01), seed=3)
    classifier = fitted(seed=3)
    assert classifier.history_.train_loss == history.train_loss
    assert np.allclose(classifier.predict_proba(x), predict(model, bags).numpy(), atol=1e-7)


def test_the_defaults_are_those_of_the_paper() -> None:
    params = SCMILClassifier().get_params()
    assert (params["epochs"], params["learning_rate"], params["weight_decay"]) == (40, 1e-4, 5e-3)


def test_features_are_not_scaled_without_standardise() -> None:
    x, _ = matrices()
    classifier = fitted(standardise=False)
    with torch.no_grad():
        expected = classifier.model_(torch.tensor(x[0]).float()).logits.softmax(0)
    assert np.allclose(classifier.predict_proba(x[:1]), expected.numpy(), atol=1e-6)
    assert not np.allclose(fitted().predict_proba(x[:1]), expected.numpy(), atol=1e-6)


def test_test_bags_are_scaled_with_the_moments_of_the_training_bags() -> None:
    x, _ = matrices()
    classifier = fitted()
    together = classifier.predict_proba(x)
    one_by_one = np.concatenate([classifier.predict_proba([features]) for features in x])
    assert np.array_equal(together, one_by_one)


def test_probabilities_sum_to_one_in_double() -> None:
    classifier = SCMILClassifier(**SMALL).fit(matrices()[0], [0, 1, 2, 3] * 4)
    sums = classifier.predict_proba(matrices()[0]).sum(1)
    assert sums.dtype == np.float64
    assert np.abs(sums - 1).max() < 1e-12


def test_every_instance_has_an_attention() -> None:
    x, _ = matrices()
    attention = fitted().attention(x)
    assert [len(shares) for shares in attention] == [len(features) for features in x]
    assert np.allclose([shares.sum() for shares in attention], 1)


def test_the_classifier_depends_on_the_seed_only() -> None:
    x, _ = matrices()
    first, again, other = (fitted(seed=seed).predict_proba(x) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "kind", ["lists", "tensors", "stacked", "reversed", "read-only", "objects"]
)
def test_bags_may_be_arrays_lists_or_tensors(kind: str) -> None:
    x, y = matrices()
    given: Any = [features[:1] for features in x]
    expected = SCMILClassifier(**SMALL).fit(given, y).predict_proba(given)
    if kind == "lists":
        given = [features.tolist() for features in given]
    elif kind == "tensors":
        given = [torch.tensor(features, requires_grad=True) for features in given]
    elif kind == "stacked":
        given = np.stack(given)
    elif kind == "reversed":
        given = [features[:, ::-1].copy()[:, ::-1] for features in given]
    elif kind == "read-only":
        for features in given:
            features.flags.writeable = False
    else:
        objects = np.empty(len(given), dtype=object)
        objects[:] = given
        given = objects
    assert np.array_equal(SCMILClassifier(**SMALL).fit(given, y).predict_proba(given), expected)


def test_bags_and_labels_of_the_user_are_not_changed() -> None:
    bags, y = as_bag_set()
    before = [bag.features.clone() for bag in bags]
    SCMILClassifier(**SMALL).fit(bags, y)
    assert all(torch.equal(bag.features, kept) for bag, kept in zip(bags, before, strict=True))
    assert bags.labels == (None,) * len(bags)


# ------------------------------------------------------------------------------ inside scikit-learn


def test_a_clone_has_the_parameters_and_is_not_fitted() -> None:
    classifier = fitted()
    copy = clone(classifier)
    assert is_classifier(copy)
    assert copy.get_params() == classifier.get_params()
    assert not hasattr(copy, "model_")
    assert copy.set_params(epochs=7, aggregator="mean").get_params()["aggregator"] == "mean"


@pytest.mark.parametrize("form", ["arrays", "bag set"])
def test_cross_validation_works_on_bags_of_different_size(form: str) -> None:
    x, y = matrices() if form == "arrays" else as_bag_set()
    scores = cross_val_score(
        SCMILClassifier(**SMALL), x, y, cv=2, scoring="neg_log_loss", error_score="raise"
    )
    assert len(scores) == 2
    assert (scores > -0.6).all()  # ln 2 = 0.69 is what guessing gets
    assert cross_val_predict(SCMILClassifier(**SMALL), x, y, cv=2).tolist() == y


def test_a_grid_may_contain_numpy_numbers() -> None:
    grid = {
        "epochs": np.array([1, 5]),
        "learning_rate": np.array([0.01], dtype=np.float32),
        "sparse_coding": [False],
    }
    search = GridSearchCV(
        SCMILClassifier(**SMALL), grid, cv=2, scoring="neg_log_loss", error_score="raise"
    ).fit(*matrices())
    assert search.best_params_["epochs"] == 5
    assert search.best_estimator_.predict(matrices()[0]).tolist() == matrices()[1]


def test_a_pipeline_can_change_the_bags_first() -> None:
    x, y = matrices()
    first_three = FunctionTransformer(lambda bags: [features[:, :3] for features in bags])
    pipeline = make_pipeline(first_three, SCMILClassifier(**SMALL)).fit(x, y)
    assert pipeline.score(x, y) == 1
    assert pipeline[-1].n_features_in_ == 3


def test_the_tags_declare_that_the_input_is_not_a_matrix() -> None:
    assert SCMILClassifier().__sklearn_tags__().input_tags.two_d_array is False


# ----------------------------------------------------------------------------------------- refusals


def test_errors_name_the_position_of_a_bag() -> None:
    classifier, good = fitted(), np.ones((2, 6))
    with pytest.raises(
        ShapeError,
        match=r"bags\[1\] has 5-dimensional features, but the classifier was fitted on 6",
    ):
        classifier.predict([good, np.ones((2, 5))])
    with pytest.raises(
        ShapeError, match=r"bags\[1\] has 5-dimensional features, but bags\[0\] has 6"
    ):
        classifier.fit([good, np.ones((2, 5))], [0, 1])
    with pytest.raises(ShapeError, match=r"bags\[0\]: a bag is a matrix .* shape \(6,\)"):
        classifier.predict(good)
    with pytest.raises(BagError, match=r"bags\[1\]: the bag is empty"):
        classifier.attention([good, np.ones((0, 6))])
    with pytest.raises(BagError, match=r"bags\[1\]: 1 of the bag's 2 instances have NaN"):
        classifier.predict([good, [[0.0] * 6, [np.nan] * 6]])
    with pytest.raises(BagError, match=r"bags\[1\] is not a matrix of numbers"):
        classifier.predict([good, [[1.0], [2.0, 3.0]]])


def test_input_that_is_not_a_list_of_bags_raises() -> None:
    classifier = fitted()
    with pytest.raises(DataError, match="there are no bags"):
        classifier.predict([])
    with pytest.raises(DataError, match="there are no bags"):
        classifier.fit([], [])
    with pytest.raises(DataError, match=r"bags is a str\. A list with one matrix"):
        classifier.predict("musk1")
    with pytest.raises(DataError, match=r"bags is a Bag\. A list with one matrix"):
        classifier.predict(Bag("a", torch.ones(2, 6)))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["a", "b"], r"y has the shape \(2,\) for 3 bags"),
        ([["a"], ["b"], ["a"]], r"y has the shape \(3, 1\) for 3 bags"),
        (["a", "a", "a"], "every bag is of class 'a'"),
        ([0, None, 1], r"y\[1\] is None"),
        ([0.0, 1.0, np.nan], r"y\[2\] is nan"),
        ([0.0, 1.0, 0.25], "non-integer values such as 0.25"),
        (np.array([0, "a", 1], dtype=object), "mixes labels of different types"),
    ],
)
def test_invalid_labels_raise(y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        SCMILClassifier(**SMALL).fit([np.ones((2, 6))] * 3, y)


def test_invalid_parameters_raise_in_fit() -> None:
    with pytest.raises(OptionError, match="epochs = 0"):
        fitted(epochs=0)
    with pytest.raises(UnknownNameError, match="Did you mean 'abmil'"):
        fitted(aggregator="abml")


def test_prediction_needs_a_fitted_classifier() -> None:
    for ask in (
        SCMILClassifier().predict,
        SCMILClassifier().predict_proba,
        SCMILClassifier().attention,
    ):
        with pytest.raises(NotFittedError):
            ask([np.ones((2, 6))])


def test_the_error_without_scikit_learn_names_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "scmil.training.estimator")
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[statistics\]'"):
        import_module("scmil.training.estimator")
