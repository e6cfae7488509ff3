#include "cli/machine_rows.h"

#include "page/output_file.h"
#include "sim/simulated.h"

enum dtp_status dtp_machine_rows_write(const char *path, const char *remark, const struct dtp_measured_row *rows,
                                       size_t count, struct dtp_faults *faults)
{
    struct dtp_output_file output;
    enum dtp_status status = dtp_output_open(path, &output, faults);
    if (status != DTP_OK)
        return status;
    if (remark)
        fprintf(output.file, "# %s\n", remark);
    dtp_measured_write(output.file, rows, count);
    return dtp_output_close(&output, faults);
}

enum dtp_status dtp_machine_rows_step(const struct dtp_job *job, const char *name, struct dtp_measured_rows *rows,
                                      double *out_s, struct dtp_faults *faults)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_job other = *job;
    struct dtp_simulated simulated;
    struct dtp_measured *measured;
    enum dtp_status status = dtp_measured_create(name, rows, &job->cluster.gpu, &measured, faults);
    if (status != DTP_OK)
        return status;
    other.cluster.measured = measured;
    status = dtp_simulated_create(&other, &options, &simulated, faults);
    if (status == DTP_OK) {
        *out_s = simulated.prediction.time.step_s;
        dtp_simulated_release(&simulated);
    }
    dtp_measured_destroy(measured);
    return status;
}
