"""The demonstration: models that do not fit, trained without LMS and with it."""
