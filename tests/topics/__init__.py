"""Topics at work: processes are simulated by engines that are joined by a wire; some tests start real nodes.
Tests of the scheduler run on simulated time; nothing asserts how long something takes."""
