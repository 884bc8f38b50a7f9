"""What runs in processes of its own: each module is started by `benchmarks.processes.Child`."""
