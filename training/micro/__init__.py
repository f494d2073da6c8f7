"""The paper in miniature: a LLaVA of about a million weights, trained and evaluated on one machine."""
