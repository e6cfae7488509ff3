# shellcheck shell=bash
# Slurm of one node for one test, sourced: munged, slurmctld and slurmd of the user who runs the test, with a configuration, sockets and
# logs of their own in a folder, on ports that nothing else has. Nothing of a Slurm that is installed and running is asked or touched.

# Daemons of others start and end as they like: tests of them are asked for.
wants_launchers() {
    [[ ${DTPLAN_TEST_LAUNCHERS-} ]] || { echo "skipped: DTPLAN_TEST_LAUNCHERS=1 tries it" && return 1; }
}

has_private_slurm() {
    local program
    PATH=$PATH:/usr/sbin
    for program in munged slurmctld slurmd srun sbatch scontrol sinfo; do
        command -v "$program" >/dev/null || { echo "$program" && return 1; }
    done
}

# start_private_slurm FOLDER TASKS [NODES]: exports SLURM_CONF; false when it does not come up within 20 s. Nodes pretend to have TASKS CPUs
# each; there are NODES of them, slurmds of this machine, 1 by default. A job that is requeued begins again once credentials have expired, after 5 s and not 120.
start_private_slurm() {
    local folder=$1 tasks=$2 nodes=${3:-1} host user port tries node
    host=$(hostname -s)
    user=$(id -un)
    port=$((40000 + $$ % 2000 * 10))
    mkdir -p "$folder"/{state,spool,munge}
    chmod 755 "$folder" "$folder/munge"
    (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
    cat >"$folder/slurm.conf" <<CONFIGURATION
ClusterName=dtplan
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
SlurmctldPort=$port
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
KillWait=2
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
NodeName=node[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=$tasks State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONFIGURATION
    export SLURM_CONF=$folder/slurm.conf
    munged --foreground --force --key-file="$folder/munge.key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
        --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" --num-threads=2 &>"$folder/munged.out" &
    slurm_processes=("$!")
    for ((tries = 0; tries < 100; tries++)); do
        [[ -S $folder/munge/socket ]] && break
        sleep 0.05
    done
    slurmctld -D &>"$folder/slurmctld.out" &
    slurm_processes+=("$!")
    for ((node = 1; node <= nodes; node++)); do
        mkdir -p "$folder/spool/node$node"
        slurmd -D -N "node$node" &>"$folder/slurmd.$node.out" &
        slurm_processes+=("$!")
    done
    for ((tries = 0; tries < 100; tries++)); do
        [[ $(timeout 5 sinfo --noheader --format=%t%D 2>/dev/null) == "idle$nodes" ]] && return
        sleep 0.2
    done
    return 1
}

stop_private_slurm() {
    [[ ${slurm_processes[*]:-} ]] || return 0
    timeout 5 scancel --user="$(id -un)" --signal=KILL 2>/dev/null
    kill "${slurm_processes[@]}" 2>/dev/null
    wait "${slurm_processes[@]}" 2>/dev/null
}
