int is_megatron(const void *runtime)
{
    return runtime == &dtp_runtime_megatron;
}
