# The folders of the sources and what each may use: the map of the house, and the one place that says it.
#
# CMakeLists.txt makes a static library of each folder and links it to those it may use; tests/check_layers.cmake holds the
# includes against this table, tests/check_symbols.sh what the compiled libraries call. A new dependency is a decision
# made here and not an accident. Folders stand low to high, and each may use folders above its own line only:
#
#   dtp_folder(FOLDER USES folders whose headers it may include, and what these may use in turn
#                     SYSTEM groups of headers in <> (below))
#
# Includes are written with their folder: "plan/plan.h" of model/plan, "table/csv.h" of reports/table, "sim/engine.h".
# The planner must start on a laptop without CUDA, and the simulator must not see what the executor measures: sim/ and exec/
# meet in programs and tables only.
set(DTP_SYSTEM_libc "(alloca|assert|complex|ctype|dirent|err|errno|error|fcntl|fenv|float|fnmatch|ftw|getopt|glob|inttypes|\
iso646|langinfo|libgen|limits|locale|malloc|math|poll|pthread|regex|sched|search|setjmp|signal|spawn|stdalign|stdarg|\
stdatomic|stdbool|stddef|stdint|stdio|stdio_ext|stdlib|stdnoreturn|string|strings|sysexits|termios|tgmath|threads|time|\
uchar|unistd|arpa/inet|netdb|netinet/[a-z]+|wchar|wctype|wordexp|sys/[a-z]+)\\.h")
set(DTP_SYSTEM_gsl "gsl/[a-z0-9_]+\\.h")
set(DTP_SYSTEM_csv "csv\\.h")
set(DTP_SYSTEM_jansson "jansson\\.h")
set(DTP_SYSTEM_inih "ini\\.h")
set(DTP_SYSTEM_yaml "yaml\\.h")
set(DTP_SYSTEM_sqlite "sqlite3\\.h")
set(DTP_SYSTEM_cuda "(cuda|cuda_[a-z0-9_]+|cooperative_groups|mma|curand_kernel|vector_types)\\.h|cub/[a-z_]+\\.cuh|math_constants\\.h")
set(DTP_SYSTEM_gpu_libraries "nccl\\.h|nccl_device\\.h|cublas[A-Za-z_0-9]*\\.h|cudnn[a-z_0-9]*\\.h")
set(DTP_SYSTEM_loader "dlfcn\\.h")
set(DTP_SYSTEM_cpu_libraries "cblas\\.h|numa\\.h|immintrin\\.h")
set(DTP_SYSTEM_cpu_instructions "immintrin\\.h")

set(DTP_FOLDERS "")
macro(dtp_folder folder)
  cmake_parse_arguments(DTP_FOLDER "" "" "USES;SYSTEM" ${ARGN})
  set(DTP_USES_${folder} ${DTP_FOLDER_USES})
  set(DTP_SYSTEM_OF_${folder} ${DTP_FOLDER_SYSTEM})
  # What it may use directly or through another: every folder it uses is already complete, since it stands lower.
  set(DTP_BELOW_${folder} ${folder})
  foreach(DTP_lower ${DTP_FOLDER_USES})
    if(NOT DTP_lower IN_LIST DTP_FOLDERS)
      message(FATAL_ERROR "folders.cmake: ${folder} uses ${DTP_lower}, which does not stand before it")
    endif()
    list(APPEND DTP_BELOW_${folder} ${DTP_BELOW_${DTP_lower}})
  endforeach()
  list(REMOVE_DUPLICATES DTP_BELOW_${folder})
  list(APPEND DTP_FOLDERS ${folder})
endmacro()

# -- model: what a training step is and costs; knows no terminal, no environment variable, no global but the constants ---
# words, numbers, tables, memory: what all the others share
dtp_folder(model/base SYSTEM libc gsl csv cpu_instructions)
# what is computed: kinds of layers, shapes, names of models
dtp_folder(model/net USES model/base SYSTEM libc jansson)
# in which order the stages of a pipeline compute, and which layers they hold
dtp_folder(model/schedule USES model/base SYSTEM libc)
# on what: GPUs, nodes, links, as catalogued and as measured
dtp_folder(model/machine USES model/net SYSTEM libc gsl)
# what is chosen: sharding, precision, batches; rules that follow from the choices
dtp_folder(model/plan USES model/machine model/schedule SYSTEM libc)
# what an operation costs alone
dtp_folder(model/cost USES model/plan SYSTEM libc gsl)
# the step program: buffers, operations, dependencies; its text, its proof, its places
dtp_folder(model/program USES model/cost SYSTEM libc)
# the closed form: traffic and time by formulas, and the memory that stands beside a program
dtp_folder(model/closed USES model/program SYSTEM libc)
# bounds of memory by arithmetic: what prunes searches and checks programs from outside
dtp_folder(model/bounds USES model/closed SYSTEM libc)
# the skeleton that composes a program; what a runtime does in it is the runtime's
dtp_folder(model/lower USES model/closed SYSTEM libc)
# by whose rules; no runtime knows another
dtp_folder(model/runtime/torch USES model/lower SYSTEM libc)
dtp_folder(model/runtime/deepspeed USES model/lower SYSTEM libc)
dtp_folder(model/runtime/megatron USES model/lower SYSTEM libc)
dtp_folder(model/runtime/dtplan USES model/lower SYSTEM libc)
dtp_folder(model/runtime/nanotron USES model/lower SYSTEM libc)
# the one list of runtimes; plans resolved by the rules of theirs
dtp_folder(model/runtime USES model/runtime/torch model/runtime/deepspeed model/runtime/megatron model/runtime/dtplan model/runtime/nanotron SYSTEM libc)
# a job as users write it: keys, scenario files, sweeps' axes
dtp_folder(model/job USES model/runtime model/bounds SYSTEM libc inih)
# what other tools recorded of a run: histories of memory, traces, logs
dtp_folder(model/observed USES model/base SYSTEM libc jansson sqlite)
# configuration files of training frameworks, as if their settings had been typed
dtp_folder(model/import USES model/job SYSTEM libc jansson yaml)
# what to do: advice, what-if, solvers, money, failures
dtp_folder(model/decide USES model/job SYSTEM libc gsl)
# measured runs: tables, backtest, fits
dtp_folder(model/runs USES model/job SYSTEM libc gsl)

# -- sim: when it happens -------------------------------------------------------------------------------------------------
dtp_folder(sim USES model/decide model/runs SYSTEM libc gsl)

# a run that others recorded beside its prediction, and the likely cause of what differs
dtp_folder(sim/beside USES sim model/observed SYSTEM libc)

# -- kernels and exec: what makes it happen -------------------------------------------------------------------------------
dtp_folder(kernels SYSTEM libc cuda)
# who takes part: processes, nodes, their exchange and their watch over each other
dtp_folder(exec/ranks USES model/decide kernels SYSTEM libc cuda gpu_libraries)
# what a run learns from: files of tokens, a Markov chain
dtp_folder(exec/data USES exec/ranks SYSTEM libc)
# what computes: GPUs or the cores of this machine
dtp_folder(exec/device USES exec/data SYSTEM libc cuda gpu_libraries cpu_libraries)
# state of a run, sharded, written and read again
dtp_folder(exec/checkpoint USES exec/device SYSTEM libc jansson)
# snapshots of it in memory, kept by neighbours, from which ranks that meet again go on
dtp_folder(exec/snapshot USES exec/checkpoint SYSTEM libc)
# operations of a program tied to memory and kernels
dtp_folder(exec/bind USES exec/snapshot SYSTEM libc)
# a run: batches, steps, what is logged
dtp_folder(exec/train USES exec/bind model/runs SYSTEM libc jansson)
# what this machine does, measured
dtp_folder(exec/probe USES exec/train SYSTEM libc jansson)
dtp_folder(exec USES exec/probe SYSTEM libc)

# -- reports: what was found, said ----------------------------------------------------------------------------------------
# columns, bars, colours of a page of text; files written whole or not at all
dtp_folder(reports/page USES sim/beside SYSTEM libc jansson)
# what a report holds, whoever writes it
dtp_folder(reports/record USES reports/page SYSTEM libc jansson)
dtp_folder(reports/text USES reports/record SYSTEM libc gsl jansson)
# for programs: CSV, JSON, traces
dtp_folder(reports/table USES reports/text SYSTEM libc jansson)
dtp_folder(reports/chart USES reports/table SYSTEM libc gsl)
dtp_folder(reports/html USES reports/chart SYSTEM libc)
dtp_folder(cli USES reports/html model/import SYSTEM libc jansson)
# the commands for programs: libdtplan
dtp_folder(cli/library USES cli SYSTEM libc loader)
