"""The scikit-learn estimator: ``classifier`` has the class, the other modules its steps."""
