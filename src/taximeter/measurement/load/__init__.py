"""How much a server takes: schedules, loops, client processes, steady windows, targets and saturation."""
