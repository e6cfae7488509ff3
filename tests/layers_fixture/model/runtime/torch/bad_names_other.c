const void *other = &dtp_runtime_deepspeed;
