/* Inside of dtp_plan_resolve: what its rules share. The rules that hold under every runtime are plan_resolve.c's, a
 * runtime's own stand in its folder. Each check stands alone and adds its fault, so that one run names all of them. */
#ifndef DTP_RESOLVER_H
#define DTP_RESOLVER_H

#include "plan/plan.h"

struct dtp_resolver {
    struct dtp_plan *plan;
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan_source *source; /* NULL: messages name no place */
    struct dtp_faults *faults;
    enum dtp_status status; /* DTP_OK until something is refused */
};

/* One fault about `key`, at the place where that key was set. */
void dtp_plan_refuse(struct dtp_resolver *resolver, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* False, with a fault, where an enum came from a cast and not from a parser: nothing else may look at such a plan. */
bool dtp_plan_choices_exist(struct dtp_resolver *resolver);
/* What follows from other choices under every runtime, then what is refused under every one, with what the plan's own
 * refuses. */
void dtp_plan_derive(struct dtp_resolver *resolver);
void dtp_plan_check(struct dtp_resolver *resolver);

/* Ranges that rules of several folders hold keys to: 1 to `maximum`. */
void dtp_plan_check_range(struct dtp_resolver *resolver, const char *key, uint64_t value, uint64_t maximum);

/* What Transformers' layers under its Trainer are not modelled with (transformers_layers.c). */
void dtp_plan_check_transformers(struct dtp_resolver *resolver);

#endif
