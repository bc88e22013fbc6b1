"""Topics at work. Tests of this folder run on simulated time unless they say otherwise: nothing here waits for a clock.
Processes are simulated by engines that are joined by a wire."""
