"""The scikit-learn estimator: ``classifier`` has the class, the other modules its steps."""

from streamtron.core.extras import library

library("sklearn", "sklearn", "StreamtronClassifier")
