const void *own = &dtp_runtime_torch;
