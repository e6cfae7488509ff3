/* Muon (torch.optim.Muon) of a block that its rank has whole: each matrix' momentum, brought near to an orthogonal one
 * by products of the program, is added to the matrix; vectors are AdamW's. Formats are those of the plan but for what
 * is multiplied, which is bf16 as in PyTorch's _zeropower_via_newtonschulz. A matrix is a tensor of the layout, so that
 * q, k and v are one, and gate and up. */
#include "runtime/dtplan/lower_executor_state.h"

#include "plan/optimizer_state.h"

struct matrix {
    struct dtp_executor_module *module;
    const struct dtp_parameter_tensor *tensor;
    const char *name;
    uint64_t elements, small, large; /* the lesser and the greater side */
    bool tall;
    dtp_buffer_id x, other, gram, polynomial, partials;
};

static uint64_t narrow_bytes(uint64_t elements)
{
    return elements * dtp_dtype_bytes(DTP_BF16);
}

/* The tensor's part of a buffer that has all of the module. */
static void use_part(const struct matrix *m, struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer,
                     uint32_t access, uint64_t element_bytes)
{
    if (buffer.index == DTP_NO_INDEX)
        return;
    struct dtp_operand *operand =
        dtp_draft_role(draft, role, buffer, access, m->tensor->offset_elements * element_bytes);
    operand->bytes = m->elements * element_bytes;
}

static dtp_buffer_id scratch(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role, const char *name,
                             uint64_t bytes, enum dtp_dtype dtype)
{
    dtp_buffer_id buffer = dtp_executor_new(x, draft, role, name, DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_program_set_element(x->l->program, buffer, dtype);
    return buffer;
}

static void begin_pass(struct dtp_executor *x, const struct matrix *m, struct dtp_draft *draft, enum dtp_form form,
                       double bytes)
{
    dtp_executor_begin(x, draft, DTP_OP_OPTIMIZER, m->name);
    draft->op.demand.form = (uint8_t)form;
    dtp_draft_role(draft, DTP_ROLE_SCALARS, x->scalars, DTP_READ, 0);
    dtp_executor_memory(draft, m->elements, bytes, 1);
    draft->op.demand.memory_kernel = DTP_KERNEL_STREAMING;
}

static void take_momentum(struct dtp_executor *x, struct matrix *m, bool frees)
{
    struct dtp_draft draft;
    uint64_t gradient = m->module->shard_element_bytes, momentum = dtp_dtype_bytes(x->rules.moments);
    begin_pass(x, m, &draft, DTP_FORM_MUON_MOMENTUM, dtp_executor_muon_momentum_bytes(x, m->module, m->elements));
    use_part(m, &draft, DTP_ROLE_WEIGHT_GRADIENT, dtp_executor_gradients_of(m->module),
             DTP_READ | (frees ? DTP_FREE : 0), gradient);
    use_part(m, &draft, DTP_ROLE_MOMENT1, m->module->state[DTP_EXECUTOR_MOMENT1], DTP_UPDATE, momentum);
    m->x = scratch(x, &draft, DTP_ROLE_RESULT, "update", narrow_bytes(m->elements), DTP_BF16);
    m->partials = scratch(x, &draft, DTP_ROLE_PARTIALS, "squares of it", 4 * (uint64_t)DTP_EXECUTOR_SQUARE_SUM_PARTIALS,
                          DTP_FP32);
    dtp_executor_end(x, &draft);
    begin_pass(x, m, &draft, DTP_FORM_MUON_UNIT, dtp_executor_muon_unit_bytes(m->elements));
    dtp_draft_role(&draft, DTP_ROLE_RESULT, m->x, DTP_UPDATE, 0);
    dtp_draft_role(&draft, DTP_ROLE_PARTIALS, m->partials, DTP_READ | DTP_FREE, 0);
    dtp_executor_end(x, &draft);
}

static void begin_product(struct dtp_executor *x, struct dtp_draft *draft, const char *name, enum dtp_form form,
                          const uint64_t shape[3])
{
    dtp_executor_begin(x, draft, DTP_OP_NEWTON_SCHULZ, name);
    dtp_draft_matmul(x->l, draft, shape[0], shape[1], shape[2], false);
    draft->op.demand.dtype = DTP_BF16;
    draft->op.demand.groups = 1;
    draft->op.demand.form = (uint8_t)form;
    dtp_draft_role(draft, DTP_ROLE_WORKSPACE, x->workspace, DTP_UPDATE, 0);
}

/* The result of an operation, made by its first use. */
static void make_result(struct dtp_executor *x, struct dtp_draft *draft, dtp_buffer_id *buffer, const char *name,
                        uint64_t elements)
{
    if (buffer->index == DTP_NO_INDEX)
        *buffer = scratch(x, draft, DTP_ROLE_RESULT, name, narrow_bytes(elements), DTP_BF16);
    else
        dtp_draft_role(draft, DTP_ROLE_RESULT, *buffer, DTP_WRITE, 0);
}

static void iterate(struct dtp_executor *x, struct matrix *m, bool last)
{
    const uint64_t n = m->small, gram[3] = {n, n, m->large}, square[3] = {n, n, n};
    const uint64_t product[3] = {m->tensor->rows, m->tensor->columns, n};
    const uint32_t frees = last ? DTP_FREE : 0;
    struct dtp_draft draft;
    begin_product(x, &draft, "gram matrix", m->tall ? DTP_FORM_GRAM_OF_COLUMNS : DTP_FORM_GRAM, gram);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, m->x, DTP_READ, 0);
    make_result(x, &draft, &m->gram, "gram matrix", n * n);
    dtp_executor_end(x, &draft);
    begin_product(x, &draft, "polynomial of it", DTP_FORM_POLYNOMIAL, square);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, m->gram, DTP_READ | frees, 0);
    make_result(x, &draft, &m->polynomial, "polynomial", n * n);
    dtp_executor_end(x, &draft);
    begin_product(x, &draft, "times the matrix", m->tall ? DTP_FORM_FROM_RIGHT : DTP_FORM_FROM_LEFT, product);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, m->x, DTP_READ | frees, 0);
    dtp_draft_role(&draft, DTP_ROLE_WEIGHT, m->polynomial, DTP_READ | frees, 0);
    make_result(x, &draft, &m->other, "next update", m->elements);
    dtp_executor_end(x, &draft);
    dtp_buffer_id made = m->other;
    m->other = m->x, m->x = made;
}

static void take_step(struct dtp_executor *x, const struct matrix *m)
{
    struct dtp_draft draft;
    begin_pass(x, m, &draft, DTP_FORM_MUON_STEP, dtp_executor_muon_step_bytes(x, m->elements));
    dtp_draft_role(&draft, DTP_ROLE_INPUT, m->x, DTP_READ | DTP_FREE, 0);
    use_part(m, &draft, DTP_ROLE_WEIGHT, m->module->state[DTP_EXECUTOR_WEIGHTS],
             x->rules.master ? DTP_WRITE : DTP_UPDATE, x->element_bytes);
    if (x->rules.master)
        use_part(m, &draft, DTP_ROLE_MASTER, m->module->state[DTP_EXECUTOR_MASTER], DTP_UPDATE, 4);
    dtp_executor_end(x, &draft);
}

static void update_matrix(struct dtp_executor *x, struct matrix *m, bool frees)
{
    const uint64_t rows = m->tensor->rows, columns = m->tensor->columns;
    m->elements = rows * columns;
    m->tall = rows > columns;
    m->small = m->tall ? columns : rows, m->large = m->tall ? rows : columns;
    m->x = m->other = m->gram = m->polynomial = DTP_NO_BUFFER;
    take_momentum(x, m, frees);
    for (int step = 0; step < DTP_NEWTON_SCHULZ_STEPS; step++)
        iterate(x, m, step + 1 == DTP_NEWTON_SCHULZ_STEPS);
    take_step(x, m);
}

/* A run of vectors: second moments stand one run behind the other in a buffer of their own. */
static void update_vectors(struct dtp_executor *x, struct dtp_executor_module *module,
                           const struct dtp_parameter_run *run)
{
    const uint64_t moment = dtp_dtype_bytes(x->rules.moments);
    const struct {
        enum dtp_role role;
        dtp_buffer_id buffer;
        uint32_t access;
        uint64_t begin, element_bytes;
    } parts[] = {{DTP_ROLE_WEIGHT_GRADIENT, dtp_executor_gradients_of(module), DTP_READ, run->begin,
                  module->shard_element_bytes},
                 {DTP_ROLE_WEIGHT, module->state[DTP_EXECUTOR_WEIGHTS], x->rules.master ? DTP_WRITE : DTP_UPDATE,
                  run->begin, x->element_bytes},
                 {DTP_ROLE_MASTER, module->state[DTP_EXECUTOR_MASTER], DTP_UPDATE, run->begin, 4},
                 {DTP_ROLE_MOMENT1, module->state[DTP_EXECUTOR_MOMENT1], DTP_UPDATE, run->begin, moment},
                 {DTP_ROLE_MOMENT2, module->state[DTP_EXECUTOR_MOMENT2], DTP_UPDATE, run->place, moment}};
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_OPTIMIZER, "vectors");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].buffer.index != DTP_NO_INDEX)
            dtp_draft_role(&draft, parts[i].role, parts[i].buffer, parts[i].access,
                           parts[i].begin * parts[i].element_bytes)
                ->bytes = run->elements * parts[i].element_bytes;
    dtp_draft_role(&draft, DTP_ROLE_SCALARS, x->scalars, DTP_READ, 0);
    dtp_executor_memory(&draft, 0, dtp_executor_update_bytes(x, module, run->elements), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_executor_end(x, &draft);
}

void dtp_executor_muon(struct dtp_executor *x, struct dtp_executor_module *module)
{
    struct dtp_parameter_run run = {.elements = 0};
    int last = 0;
    for (int next = 0; dtp_parameter_next_vectors(module->layout, &next, &run);)
        update_vectors(x, module, &run);
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++)
        last = module->layout->tensor[i].exists && module->layout->tensor[i].rows > 1 ? i : last;
    for (int i = 0; i <= last; i++) {
        struct matrix matrix = {
            .module = module, .tensor = &module->layout->tensor[i], .name = dtp_parameter_text((enum dtp_parameter)i)};
        if (matrix.tensor->exists && matrix.tensor->rows > 1)
            update_matrix(x, &matrix, i == last);
    }
}
