"""The fitted model: file, validation, import and export, metrics, accuracy bounds."""
