"""SC-MIL where scikit-learn takes a classifier.   python examples/03_sklearn_cross_validation.py

The bags are scikit-learn's own digits: about ten pictures a bag, and the question is whether one of them is a nine.
"""

import warnings
from typing import Any

import torch
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

from scmil import load_dataset
from scmil.training.estimator import SCMILClassifier
from scmil.sparse_coding.layer import StepWarning

torch.set_num_threads(1)  # the matrices are small: a second thread would cost more than it brings
warnings.simplefilter(
    "ignore", StepWarning
)  # at this high rate the step ends a few per cent too long; 2 would be too much

# 1. X is a list of matrices (instances, features) of any length, y is one class a bag.
bags = load_dataset("digits")
X = [bag.features.numpy() for bag in bags]
y = ["with a nine" if bag.label else "without" for bag in bags]
print(f"{len(X)} bags of {min(map(len, X))} to {max(map(len, X))} digits, {X[0].shape[1]} features each")

# 2. Cross-validation. Small networks and a high rate, so that it takes seconds; the defaults are the paper's.
folds = StratifiedKFold(3, shuffle=True, random_state=0)
small: dict[str, Any] = dict(embed=[36], epochs=8, learning_rate=1e-3, weight_decay=1e-4)
for sparse_coding in (False, {"atoms": 64}):
    classifier = SCMILClassifier("abmil-gated", sparse_coding=sparse_coding, **small)
    scores = cross_val_score(classifier, X, y, cv=folds, scoring="roc_auc")
    print(f"sparse coding {sparse_coding!s:14} AUC {scores.mean():.3f} ± {scores.std(ddof=1):.3f} over 3 folds")

# 3. A grid over the classifier's parameters, as over any other's. A BagSet will do for X, too.
grid = {"sparse_coding": [{"atoms": 16}, {"atoms": 64}]}
search = GridSearchCV(SCMILClassifier(**small), grid, cv=2, scoring="roc_auc").fit(bags[:100], y[:100])
print("the better number of atoms:", search.best_params_["sparse_coding"]["atoms"])

# 4. Which instance decided? In bags that were not trained on, is it a nine that has the most attention?
held_out = [bag for bag in bags[100:] if bag.label]
attention = search.best_estimator_.attention(held_out)
hits = 0
for bag, shares in zip(held_out, attention, strict=True):
    is_nine = bag.instance_labels
    hits += is_nine is not None and bool(is_nine[shares.argmax()])
print(f"the digit with the most attention is a nine in {hits} of {len(held_out)} new bags with a nine")
