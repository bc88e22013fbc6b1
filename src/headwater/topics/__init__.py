"""Topics at work: deliveries of dirty topics in their order. Never decides that order: `model.schedule` does."""
