"""SC-MIL as a scikit-learn classifier: `python examples/03_sklearn_cross_validation.py`.

The bags contain about ten images of scikit-learn's digits; a bag is positive if one is a nine.
"""

import warnings
from typing import Any

import torch
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

from scmil import load_dataset
from scmil.sparse_coding.layer import StepWarning
from scmil.training.estimator import SCMILClassifier

torch.set_num_threads(1)  # a second thread does not help for small matrices
# At this high learning rate the step size ends slightly too large, which is harmless here.
warnings.simplefilter("ignore", StepWarning)

# 1. X is a list of matrices (instances, features) of any length; y has one class per bag.
bags = load_dataset("digits")
X = [bag.features.numpy() for bag in bags]
y = ["with a nine" if bag.label else "without" for bag in bags]
print(
    f"{len(X)} bags of {min(map(len, X))} to {max(map(len, X))} digits, "
    f"{X[0].shape[1]} features each"
)

# 2. Cross-validation. A small network and a high learning rate take seconds; the defaults are those
# of the paper.
folds = StratifiedKFold(3, shuffle=True, random_state=0)
small: dict[str, Any] = dict(embed=[36], epochs=8, learning_rate=1e-3, weight_decay=1e-4)
for sparse_coding in (False, {"atoms": 64}):
    classifier = SCMILClassifier("abmil-gated", sparse_coding=sparse_coding, **small)
    scores = cross_val_score(classifier, X, y, cv=folds, scoring="roc_auc")
    print(
        f"sparse coding {sparse_coding!s:14} AUC {scores.mean():.3f} ± {scores.std(ddof=1):.3f} "
        "over 3 folds"
    )

# 3. A grid search over parameters of the classifier. X may be a BagSet as well.
grid = {"sparse_coding": [{"atoms": 16}, {"atoms": 64}]}
search = GridSearchCV(SCMILClassifier(**small), grid, cv=2, scoring="roc_auc").fit(
    bags[:100], y[:100]
)
print("best number of atoms:", search.best_params_["sparse_coding"]["atoms"])

# 4. In bags that were not used in training: has a nine the highest attention?
held_out = [bag for bag in bags[100:] if bag.label]
attention = search.best_estimator_.attention(held_out)
hits = 0
for bag, weights in zip(held_out, attention, strict=True):
    is_nine = bag.instance_labels
    hits += is_nine is not None and bool(is_nine[weights.argmax()])
print(f"the digit with the highest attention is a nine in {hits} of {len(held_out)} positive bags")
