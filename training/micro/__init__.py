"""The paper in miniature: a LLaVA of 1.4 million weights, trained and evaluated on one machine."""
