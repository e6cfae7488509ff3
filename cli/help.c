/* --help: usage, options and keys from the tables that the parser itself reads, and examples that run as they stand. */
#include "cli/command.h"
#include "cli/help.h"

#include "chart/chart.h"
#include "runs/run_table.h"
#include "schedule/schedule.h"

#include <stdio.h>
#include <string.h>

#define WORDS_COLUMN 30
#define NARROW_WORDS_COLUMN 8 /* below the flag, where the page has no room beside it */
#define NARROW_COLUMNS 72

#define USAGE_COLUMN 7
#define TITLE_COLUMN 12

static const struct dtp_command_help helps[DTP_COMMAND_COUNT] = {
    [DTP_COMMAND_PLAN] =
        {"dtplan [plan] [SCENARIO.ini ...] [--KEY VALUE ...] [--json | --csv]",
         "Predicts memory, communication, step time and cost of one training job. Scenario files hold the same keys as "
         "the flags; flags override them. --strategy takes one name, a comma list or 'all'; several are compared in "
         "one table.",
         {{"dtplan --params 7e9 --gpus 8 --strategy full_shard", "seven billion parameters on one node"},
          {"dtplan --model llama-2-7b --gpus 8 --gpu a100-80-sxm --seq 4096 --micro-batch 2 --checkpointing full",
           "a known model on named GPUs"},
          {"dtplan --model path/to/config.json --gpus 16 --compile --json", "a Hugging Face model, for a program"},
          {"dtplan --params 13B --gpus 8 --strategy all", "all strategies side by side"},
          {"dtplan --params 70B --checkpointing full --compile --min-gpus", "how many GPUs are needed at least"},
          {"dtplan --params 7B --gpus 8 --max-micro-batch", "how large the micro batch can be"}}},
    [DTP_COMMAND_EXPLAIN] =
        {"dtplan explain [SCENARIO.ini ...] [--KEY VALUE ...] [--program] [--json]",
         "Shows where each byte and each second of a plan comes from: the rule, the numbers put into it, and the sum. "
         "Takes the same keys as plan. Where tp, cp or pp divide the model it explains the simulation: the rank with "
         "most memory, the one that computes longest, what ranks of a pipeline idle and why.",
         {{"dtplan explain --params 7e9 --gpus 8 --strategy full_shard", "formula by formula"},
          {"dtplan explain --model llama-2-7b --gpus 8 --runtime megatron --strategy zero1 --tp 2 --pp 4",
           "of a pipeline"},
          {"dtplan explain --model gpt2 --gpus 4 --strategy ddp --micro-batch 8", "a small model under DDP"},
          {"dtplan explain --params 7e9 --gpus 8 --program", "the operations of the step, layer by layer"}}},
    [DTP_COMMAND_SIMULATE] =
        {"dtplan simulate [SCENARIO.ini ...] [--KEY VALUE ...] [--trace FILE] [--timeline FILE] [--memory FILE] "
         "[--json]",
         "Writes out the job's step as a program of operations on streams and runs it in time: what overlaps, what "
         "waits, which chain of operations sets the length of the step, when memory peaks. Takes the same keys as "
         "plan.",
         {{"dtplan simulate --params 7e9 --gpus 8 --strategy full_shard", "where the time of a step goes"},
          {"dtplan simulate --model gpt2 --gpus 4 --strategy ddp --trace step.json", "look at it in ui.perfetto.dev"},
          {"dtplan simulate --params 7e9 --gpus 8 --memory memory.csv --charts", "memory over time, table and chart"}}},
    [DTP_COMMAND_WHATIF] = {"dtplan whatif [SCENARIO.ini ...] [--KEY VALUE ...] [--json | --csv]",
                            "Predicts every single change of a plan: units, batch, shard group, offload, "
                            "checkpointing, dtypes, overlap, compile, kernels. One ranked table with what each costs "
                            "or saves in memory and time, and why. Takes the same keys as plan.",
                            {{"dtplan whatif --params 7e9 --gpus 8 --strategy full_shard", "what to tune first"},
                             {"dtplan whatif --params 13e9 --gpus 16 --accumulate 4 --csv",
                              "all changes as a table for a spreadsheet"}}},
    [DTP_COMMAND_SWEEP] =
        {"dtplan sweep [SCENARIO.ini ...] [--KEY LIST ...] [-o FILE.csv] [--fidelity bounds|simulated]",
         "Predicts every combination of lists and ranges of keys: one CSV row each, memory, communication, time, "
         "throughput and money, with units in the header. A flag takes 8,16 or 8..64 or 8..64+8 or 8..1024x2 or all; "
         "switches are written --compile=true,false. A refused combination is a row with the reason. With -o a sweep "
         "that was stopped goes on where its file ends.",
         {{"dtplan sweep --params 7B --gpus 8..1024x2 --strategy all -o sweep.csv", "scaling of all strategies"},
          {"dtplan sweep --model llama-3-8b --gpus 8 --gpu a100-80-sxm,h100-sxm,h200-sxm --seq 2k..32kx2 "
           "--compile=true,false",
           "to standard output"}}},
    [DTP_COMMAND_SEARCH] =
        {"dtplan search [SCENARIO.ini ...] --tokens N [--deadline TIME] [--budget USD] [--KEY LIST ...] [--max-gpus N] "
         "[--max-nodes N] [--exclude-gpu LIST] [--json | --csv]",
         "Finds which GPUs, how many of them and which plan train N tokens cheapest within deadline and budget "
         "(fastest, with a budget alone). Every key can be pinned, or given a list or range as in sweep; GPU, number "
         "of GPUs, strategy, shard group, micro batch, accumulation, checkpointing, offload, precision and compilation "
         "vary where they are not, tp, pp, cp, virtual stages and, of models with experts, ep too once runtime and GPU "
         "are given. Formulas predict all combinations, simulation ranks the best and replays their memory. Without a "
         "plan it says which limit to move and how far.",
         {{"dtplan search --model llama-3-8b --tokens 2T --deadline 30d --budget 500k --gpu h100-sxm,a100-80-sxm --seq "
           "8k --global-batch-tokens 4M",
           "which cluster to rent"},
          {"dtplan search --params 1B --gpus 2 --gpu a10 --tokens 200M --budget 15",
           "what an evening of two GPUs can do"}}},
    [DTP_COMMAND_BACKTEST] =
        {"dtplan backtest RUNS.csv ... [--fidelity bounds|simulated] [--machine FILE.csv] [-o ROWS.csv | "
         "--leave-one-out] [--json | --csv]",
         "Predicts measured runs from their configuration alone and reports how far off the predictions are, beside "
         "the simplest predictor there is: one constant MFU per kind of GPU. Of sweeps, runs of one source, model, GPU "
         "and number of nodes, also what choosing by the predictions delivers.",
         {{"dtplan backtest scenarios/published_runs.csv", "score the published runs"},
          {"dtplan backtest scenarios/h200_torch_runs.csv --fidelity simulated",
           "score what the simulation says of runs on H200"},
          {"dtplan backtest scenarios/published_runs.csv -o rows.csv",
           "and write predicted beside measured, run by run"},
          {"dtplan backtest scenarios/nanotron_h100_runs.csv scenarios/nanotron_h100_oom.csv --notes q=A",
           "a sweep with what died in it: are the decisions good"},
          {"dtplan backtest --leave-one-out scenarios/published_runs.csv scenarios/h200_torch_runs.csv",
           "score each source by a fit on the others"}}},
    [DTP_COMMAND_CHART] =
        {"dtplan chart KIND FILE.csv [-o FIGURE] [--where COLUMN=VALUE ...]",
         "Draws a table that another command wrote: as text on the terminal, or with -o by gnuplot as .png, .svg, .pdf "
         "or .txt, its script and data beside it to draw again from. Without gnuplot memory, timeline, strategies and "
         "step are still drawn as text, and of a figure the script and the data are there.",
         {{"dtplan --params 7e9 --gpus 8 --strategy all --csv > plans.csv", "a table"},
          {"dtplan chart strategies plans.csv", "as text"},
          {"dtplan chart strategies plans.csv -o strategies.png", "as a picture"}}},
    [DTP_COMMAND_LAUNCH] =
        {"dtplan launch [SCENARIO.ini ...] [--from FILE ...] [--KEY VALUE ...] [--to PROGRAM] [-o DIR] [--force]",
         "Writes what starts a plan: the framework's own configuration and a script. It is read back before it is "
         "handed out: what the framework's files cannot say is refused by name, what is written gives the same plan "
         "with --from. With -o into a folder, else to standard output.",
         {{"dtplan launch --model llama-3-8b --gpu h100 --gpus 64 --seq 8k --compile --checkpointing selective -o run1",
           "FSDP2 by torchtitan"},
          {"dtplan launch --model llama-2-7b --gpu a100-80-sxm --gpus 8 --runtime deepspeed --strategy zero3 "
           "--micro-batch 2",
           "DeepSpeed's JSON and TrainingArguments, to look at"},
          {"dtplan launch --model llama-3-8b --gpu h100 --gpus 16 --runtime megatron --strategy zero1 --tp 2 --seq 8k "
           "-o run2",
           "flags for Megatron-LM"}}},
    [DTP_COMMAND_RUN] =
        {"dtplan run [SCENARIO.ini ...] [--KEY VALUE ...] [--steps N] [--device cuda|host] [--data FILE] [--log "
         "FILE.csv]",
         "Trains the model of a plan: dtplan-exec runs the very step program that is simulated, on GPUs or on the "
         "cores of this machine, and what was predicted stands beside what was measured. Takes the same keys as plan, "
         "of --runtime dtplan. The last two steps are timed operation by operation: one alone, one as it runs. A plan "
         "of "
         "--runtime torch is trained by PyTorch itself, where that is installed (DTPLAN_PYTHON names the interpreter).",
         {{"dtplan run --layers 2 --hidden 128 --heads 4 --vocab 512 --seq 128 --gpus 1 --strategy ddp --device host "
           "--steps 20",
           "a small model on this machine's cores"},
          {"dtplan run --model sheared-llama-1.3b --gpu h200 --gpus 1 --strategy ddp --micro-batch 4 --steps 50",
           "on a GPU"},
          {"dtplan run --model gpt-2 --gpu h200 --gpus 4 --strategy zero1 --micro-batch 32 --seq 1024 --data train.bin "
           "--steps 2000 --warmup 100 --lr 6e-4 --checkpoint run1 --checkpoint-every 500 --log run1.csv",
           "a file of tokens on four GPUs"},
          {"dtplan run --model gpt-2 --gpu h200 --gpus 4 --gpus-per-node 2 --strategy hybrid_shard --pretend-nodes "
           "--network sockets --network-gbit-per-s 59",
           "one machine as two nodes"},
          {"dtplan run --runtime torch --model llama-2-7b --gpu h100 --gpus 8 --micro-batch 1 --steps 12",
           "the same plan by PyTorch's FSDP2"}}},
    [DTP_COMMAND_VALIDATE] =
        {"dtplan validate [SCENARIO.ini | LIST.scenarios ...] [--KEY LIST ...] [--tolerance 10%] [-o FILE.csv] "
         "[--resume] [--chart FIGURE] [--refit MACHINE.csv] [--json]",
         "Predicts jobs, runs each as `run` does, and says how far off the predictions were: memory by owner, bytes "
         "sent, operations, step time with its error split into costs, contention and host. Where ranks divide experts "
         "the step is predicted once more with as many tokens on the fullest rank as the router sent it, "
         "of sums over all steps (measured_expert_imbalance, predicted_imbalanced_step_s), for predictions "
         "take it to give each as many, which one "
         "that has not learnt does not. A flag takes lists as in "
         "sweep; each line of a file that ends in .scenarios holds flags as well. Exit status 1 where a step is beyond "
         "the tolerance, memory of the device or of PyTorch's allocator beyond 2 %, or bytes differ at all. A run that "
         "fails is a row with its "
         "reason, the others go on.",
         {{"dtplan validate --layers 2 --hidden 64 --heads 2 --vocab 300 --seq 64 --gpus 1,2 --strategy ddp,full_shard "
           "--device host",
           "small models on this machine's cores"},
          {"dtplan validate reports/h200/validate.scenarios --tolerance 5% -o validate.csv --chart validate.png",
           "a list of jobs on the GPUs of this machine"},
          {"dtplan validate reports/h200/validate.scenarios -o validate.csv --resume --refit machine.csv",
           "what those runs correct of a machine file; none is made again"}}},
    [DTP_COMMAND_COMPARE] =
        {"dtplan compare FILE ... [SCENARIO.ini] [--KEY VALUE ...] [--json]",
         "Reads what other tools recorded of a run: PyTorch's history of memory (pickle, nothing in it is executed), a "
         "trace of its profiler (JSON), nsys' database (nsys export --type sqlite) or table, a log of torchtitan or "
         "Megatron-LM. Says where memory and time went, beside the plan where its keys are given, and the likely "
         "causes of what differs, each with "
         "its "
         "evidence. Traces of several ranks on one line show a slow one.",
         {{"dtplan compare trace.json --model llama-3-8b --gpu h100 --gpus 8 --seq 8k", "a trace beside its plan"},
          {"dtplan compare memory.pickle --from train.toml --gpu h100 --gpus 8", "of torchtitan's configuration"},
          {"dtplan compare trace.json --model llama-3-8b --gpu h100 --gpus 8 --seq 8k -o machine.csv",
           "and a machine file fitted to it"},
          {"dtplan compare rank0.json rank1.json rank2.json rank3.json", "which rank do the others wait for"}}},
    [DTP_COMMAND_PROBE] =
        {"dtplan probe [-o MACHINE.csv] [--force] [--gpu KEY] [--gpus N] [--device cuda|host] [--seconds N] "
         "[SCENARIO.ini ...] [--KEY VALUE ...]",
         "Measures this machine in some three minutes: matmul, attention and kernels inside running steps of many "
         "shapes, collectives over sizes and groups of GPUs, what both do to each other, copies and AdamW of the host. "
         "Results are checked before a figure is taken. Writes a machine file that every command takes with --machine, "
         "and prints rates beside those of the catalogue. Keys of a job have its shapes measured as well. With "
         "--runtime "
         "torch PyTorch's own kernels are measured, inside steps that PyTorch trains on one GPU, for plans that it "
         "runs.",
         {{"dtplan probe -o machine.csv", "all GPUs of this machine"},
          {"dtplan probe --gpus 1 -o one.csv", "one of them"},
          {"dtplan probe --machine one.csv --gpus 4 --gpus-per-node 2 --pretend-nodes -o nodes.csv",
           "what a GPU does by itself from a file, only collectives measured"},
          {"dtplan probe --model llama-3-8b --seq 8k --micro-batch 1 -o machine.csv", "and the shapes of a job"},
          {"dtplan probe --runtime torch -o torch.csv", "PyTorch's kernels, by probe_torch.py"},
          {"dtplan probe --device host -o here.csv", "no GPU: the cores of this machine, in a minute"},
          {"dtplan validate --device host --machine here.csv --layers 4 --hidden 256 --gpus 1,2",
           "and how far off predictions by that are"}}},
    [DTP_COMMAND_REPORT] =
        {"dtplan report SCENARIO.ini|SWEEP.csv [--KEY VALUE ...] [-o PAGE.html]",
         "Writes one HTML page to decide by, complete in itself: does it fit, how long, how much, what can go wrong; "
         "then the plan, breakdowns, alternatives, our own error on measured runs like it, every assumption with its "
         "source, and the commands to do it again. Takes the same keys as plan; of a sweep or a search, its table "
         "alone.",
         {{"dtplan report --model llama-2-7b --gpus 8 --strategy full_shard --tokens 1T -o report.html",
           "a page on one plan"},
          {"dtplan sweep --params 7B --gpus 8..64x2 --strategy all -o sweep.csv", "a table"},
          {"dtplan report sweep.csv -o sweep.html", "a page on the table"}}},
    [DTP_COMMAND_CATALOG] =
        {"dtplan catalog gpus|machines|models [NAME ...] | measured FILE.csv ... | constants [RUNS.csv ...] [--json | "
         "--csv]",
         "Lists what can be named with --gpu, --machine and --model. With names: every figure with its kind "
         "(datasheet, measured, assumed) and source. measured: what a machine file of dtplan probe says, how good its "
         "fits are, and with --csv each row beside its fit. constants: every constant of the model with its source, "
         "what it was fitted on, and how many measured runs it moves.",
         {{"dtplan catalog gpus", "all GPUs"},
          {"dtplan catalog gpus h100-sxm", "each figure of one of them and where it comes from"},
          {"dtplan catalog measured path/to/machine.csv", "how well fits describe what was measured"},
          {"dtplan catalog constants", "what the predictions rest on"},
          {"dtplan catalog models --csv", "all models as a table for a spreadsheet"}}},
    [DTP_COMMAND_DOCTOR] =
        {"dtplan doctor [COMMAND ...] [--device cuda|host] [--json]",
         "Says what this machine lacks for which command, and how to have it: libraries of GPUs, dtplan-exec, gnuplot, "
         "launchers. Predicting needs none of them. Of commands that are named the exit status is 3 where one of them "
         "cannot do its work here.",
         {{"dtplan doctor", "all there is to know"},
          {"dtplan doctor run --device host", "whether plans can be run on the cores of this machine"},
          {"dtplan doctor run validate --json", "the same of GPUs, for a program"}}},
    [DTP_COMMAND_SCHEDULE] =
        {"dtplan schedule --stages N --micro-batches N [--schedule LIST] [--times F,B,W[,SEND]] [--csv] [--chart "
         "FIGURE] [--passes FILE.csv]",
         "Times pipeline schedules, of equal stages or of layers that are cut: when each rank computes, what it idles "
         "and why, how many micro-batches it keeps, what waits in queues. Of one schedule it draws the passes of all "
         "ranks, several stand in one table. Combinations that a schedule does not know are refused with the nearest "
         "that it does.",
         {{"dtplan schedule --stages 8 --micro-batches 24", "all schedules beside each other"},
          {"dtplan schedule --schedule dualpipe --stages 8 --micro-batches 20", "one of them, drawn"},
          {"dtplan schedule --stages 8 --micro-batches 24 --times 29.7,29.4,19.9,0.53 --csv",
           "with measured times, as a table for a spreadsheet"},
          {"dtplan schedule --schedule zb-1p,zb-2p --stages 8 --micro-batches 24 --times 29.7,29.4,19.9,0.53 "
           "--kept-for-weights 0.43",
           "orders of passes that are found for these times, within what 1F1B keeps and twice that"},
          {"dtplan schedule --stages 4 --micro-batches 12 --layers 30 --head 2 --layout best",
           "of a model whose head takes as long as two of its layers"},
          {"dtplan schedule --schedule zb-v --stages 4 --micro-batches 12 --chart zb-v.png", "as a picture"}}},
    [DTP_COMMAND_HELP] = {"dtplan help [COMMAND]",
                          "Prints help of the program or of one command.",
                          {{"dtplan help plan", "all keys of a plan"}}},
};

static void print_usage(const struct dtp_page *page, const char *usage)
{
    dtp_page_print(page, DTP_INK_BOLD, "usage: ");
    dtp_page_wrap(page, USAGE_COLUMN, USAGE_COLUMN + 4, usage);
}

/* "  --micro-batch N            words", wrapped. */
static void print_flag(const struct dtp_page *page, const char *flag, const char *value, const char *words)
{
    char left[160];
    snprintf(left, sizeof left, "%s%s%s", flag, value ? " " : "", value ? value : "");
    int column = dtp_page_columns(page) < NARROW_COLUMNS ? NARROW_WORDS_COLUMN : WORDS_COLUMN;
    if ((int)strlen(left) > column - 4)
        fprintf(page->file, "  %s\n%*s", left, column, "");
    else
        fprintf(page->file, "  %-*s", column - 2, left);
    dtp_page_wrap(page, column, column, words);
}

static void print_options(const struct dtp_page *page, enum dtp_command command)
{
    size_t count;
    const struct dtp_option *options = dtp_options(&count);
    dtp_page_heading(page, "OPTIONS", "");
    for (size_t i = 0; i < count; i++)
        if (options[i].commands & (1u << command))
            print_flag(page, options[i].flag, options[i].value, options[i].words);
}

/* "--micro-batch" of "micro_batch". */
static const char *as_flag(const char *key, char *out, size_t bytes)
{
    snprintf(out, bytes, "--%s", key);
    for (char *c = out; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return out;
}

/* "--batch-size N   the same as --micro-batch: ...". */
static void print_other_words(const struct dtp_page *page, const struct dtp_scenario_key *key)
{
    size_t count;
    const struct dtp_scenario_alias *aliases = dtp_scenario_aliases(&count);
    for (size_t i = 0; i < count; i++) {
        char flag[64], own[64], words[256];
        if (aliases[i].value || strcmp(aliases[i].key, key->key) != 0)
            continue;
        snprintf(words, sizeof words, "the same as %s: %s", as_flag(key->key, own, sizeof own), aliases[i].words);
        print_flag(page, as_flag(aliases[i].word, flag, sizeof flag), key->value, words);
    }
}

/* The keys in the order of their table, a heading where the section changes. */
static void print_keys(const struct dtp_page *page)
{
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    const char *section = "";
    for (size_t i = 0; i < count; i++) {
        char flag[64], choices[256], words[600];
        if (strcmp(section, keys[i].section) != 0) {
            section = keys[i].section;
            dtp_page_heading(page, "KEYS", "[%.40s] in a scenario file", section);
        }
        const char *value = dtp_scenario_key_choices(&keys[i], choices, sizeof choices);
        print_flag(page, as_flag(keys[i].key, flag, sizeof flag), value,
                   dtp_scenario_key_words(&keys[i], words, sizeof words));
        print_other_words(page, &keys[i]);
    }
    fputc('\n', page->file);
    dtp_page_wrap(page, 0, 0,
                  "A switch is turned off by --no-SWITCH. Numbers accept 7e9, 7B, 2k. In a scenario file a key is "
                  "written with underscores: micro_batch = 4.");
}

static void print_examples(const struct dtp_page *page, const struct dtp_command_help *help)
{
    dtp_page_heading(page, "EXAMPLES", "");
    for (size_t i = 0; i < sizeof help->examples / sizeof *help->examples && help->examples[i][0]; i++) {
        dtp_page_ink(page, DTP_INK_DIM);
        dtp_page_wrap_comment(page, 2, help->examples[i][1]);
        dtp_page_ink(page, DTP_INK_PLAIN);
        fputs("  ", page->file);
        dtp_page_wrap_command(page, 2, 6, help->examples[i][0]);
    }
}

/* Of chart: what it draws. */
static void print_charts(const struct dtp_page *page)
{
    dtp_page_heading(page, "KINDS", "what is drawn, and where its table comes from");
    for (int i = 0; i < DTP_CHART_COUNT; i++) {
        char words[200];
        enum dtp_chart chart = (enum dtp_chart)i;
        snprintf(words, sizeof words, "%s; %s", dtp_chart_words(chart), dtp_chart_command(chart));
        print_flag(page, dtp_chart_name(chart), NULL, words);
    }
}

/* Of schedule: which there are. */
static void print_schedules(const struct dtp_page *page)
{
    dtp_page_heading(page, "SCHEDULES", "of p ranks, m micro-batches and v chunks a rank");
    for (int i = 0; i < DTP_SCHEDULE_COUNT; i++) {
        const struct dtp_schedule_row *row = dtp_schedule_row((enum dtp_schedule_kind)i);
        char words[300];
        snprintf(words, sizeof words, "%s%s%s%s%s (%s)", row->words, row->rule[0] ? "; takes " : "", row->rule,
                 row->bubble[0] ? "; bubble " : "", row->bubble, row->source);
        print_flag(page, row->word, NULL, words);
    }
}

/* Of backtest: what a run table holds. */
static void print_columns(const struct dtp_page *page)
{
    size_t count;
    const struct dtp_run_column *columns = dtp_run_table_columns(&count);
    for (int measured = 0; measured < 2; measured++) {
        dtp_page_heading(page, measured ? "MEASURED COLUMNS" : "COLUMNS", "%s",
                         measured ? "one at least" : "of a run table, in any order; * must be there");
        for (size_t i = 0; i < count; i++)
            if (columns[i].measured == (measured == 1))
                print_flag(page, columns[i].name, columns[i].needed ? "*" : NULL, columns[i].words);
    }
}

const struct dtp_command_help *dtp_help_of(enum dtp_command command)
{
    return &helps[command];
}

const char *dtp_help_title(enum dtp_command command, char *out, size_t bytes)
{
    const char *words = helps[command].words, *stop = strstr(words, ". ");
    size_t end = strcspn(words, ":;");
    if (stop && (size_t)(stop - words) < end)
        end = (size_t)(stop - words);
    snprintf(out, bytes, "%.*s", (int)end, words);
    out[0] = (char)(out[0] >= 'A' && out[0] <= 'Z' ? out[0] - 'A' + 'a' : out[0]);
    if (out[0] && out[strlen(out) - 1] == '.')
        out[strlen(out) - 1] = '\0';
    return out;
}

const char *dtp_exit_status_words(int status)
{
    static const char *const words[] = {
        "done", "the answer is no: the plan does not fit, nothing that was asked for does, or a prediction is off",
        "usage or bad input",
        "environment: catalogues not found, output cannot be written, stopped by a signal before it was done"};
    return words[status];
}

static void print_exit_status(const struct dtp_page *page)
{
    dtp_page_heading(page, "EXIT STATUS", "");
    for (int i = DTP_OK; i <= DTP_ENVIRONMENT; i++)
        fprintf(page->file, "  %d  %s\n", i, dtp_exit_status_words(i));
}

void dtp_help_command(enum dtp_command command, const struct dtp_page *page)
{
    const struct dtp_command_help *help = &helps[command];
    print_usage(page, help->usage);
    fputc('\n', page->file);
    dtp_page_wrap(page, 0, 0, help->words);
    print_examples(page, help);
    if (command == DTP_COMMAND_CHART)
        print_charts(page);
    if (command == DTP_COMMAND_SCHEDULE)
        print_schedules(page);
    if (command == DTP_COMMAND_BACKTEST)
        print_columns(page);
    print_options(page, command);
    if (dtp_command_takes_job(command))
        print_keys(page);
    print_exit_status(page);
}

/* "  search     finds which GPUs ... within deadline and budget". */
static void print_title(const struct dtp_page *page, const char *command, const char *title)
{
    fprintf(page->file, "  %-*s", TITLE_COLUMN - 2, command);
    dtp_page_wrap(page, TITLE_COLUMN, TITLE_COLUMN, title);
}

void dtp_help_program(const struct dtp_page *page)
{
    dtp_page_wrap(page, 0, 0,
                  "dtplan predicts what training a transformer on GPUs needs and delivers, before the GPUs are rented: "
                  "memory, communication, step time, throughput and cost.");
    fputc('\n', page->file);
    print_usage(page, helps[DTP_COMMAND_PLAN].usage);
    fprintf(page->file, "%*sdtplan COMMAND ...\n", USAGE_COLUMN, "");
    print_examples(page, &helps[DTP_COMMAND_PLAN]);
    dtp_page_heading(page, "COMMANDS", "");
    for (int i = 0; i < DTP_COMMAND_COUNT; i++) {
        char title[DTP_HELP_TITLE_BYTES];
        enum dtp_command command = (enum dtp_command)i;
        print_title(page, dtp_command_text(command), dtp_help_title(command, title, sizeof title));
    }
    print_exit_status(page);
    fputc('\n', page->file);
    dtp_page_wrap(page, 0, 0, "Usage, all keys and options of a command, and examples: dtplan help COMMAND");
}

enum dtp_status dtp_command_help(const struct dtp_context *context)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_command command;
    if (a->word_count == 0) {
        dtp_help_program(&context->page);
        return DTP_OK;
    }
    if (a->word_count > 1)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0, "help takes one command; see dtplan help");
    if (!dtp_command_parse(a->words[0], &command))
        return dtp_command_unknown(a->words[0], context->faults);
    dtp_help_command(command, &context->page);
    return DTP_OK;
}
