"""Every property an engine must satisfy."""
