"""Topics at work: processes are simulated by engines that are joined by a wire; real nodes are met where a test says so.
Tests of the scheduler run on simulated time; nothing asserts how long something takes."""
