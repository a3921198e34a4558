#!/usr/bin/env bash
# A fleet on Slurm: sbatch slurm.sh. Each machine of the job gets a Ray node and one replica of the fleet.
# Set: the partition's options, MODEL, and ENVIRONMENT, a Python with pitstop's wheel and its extra `fleet`, seen by all.
#SBATCH --job-name=pitstop-fleet
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@60
set -euo pipefail

MODEL=${MODEL:?the model: a directory that every machine sees}
ENVIRONMENT=${ENVIRONMENT:?a Python environment that every machine sees}
PORT=${PORT:-6379}
STORE_BYTES=${STORE_BYTES:-17179869184}
export PATH=$ENVIRONMENT/bin:$PATH RAY_USAGE_STATS_ENABLED=0

mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${machines[0]}
head_address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')

# Starts a step on a machine. Every step ends with the job, and Ray's processes with their step.
on() {
    srun --nodes=1 --ntasks=1 --nodelist="$1" --overlap "${@:2}" &
}
on "$head" ray start --head --block --disable-usage-stats --node-ip-address="$head_address" --port="$PORT" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --object-store-memory="$STORE_BYTES"
for machine in "${machines[@]:1}"; do
    on "$machine" ray start --block --disable-usage-stats --address="$head_address:$PORT" \
        --num-cpus="$SLURM_CPUS_PER_TASK" --object-store-memory="$STORE_BYTES"
done

# Machines may join the cluster late: the fleet starts each replica when its machine has joined.
trap 'kill $(jobs -p) 2>/dev/null; wait' TERM EXIT
until srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap ray status --address="$head_address:$PORT" >/dev/null 2>&1; do
    sleep 1
done
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    pitstop-fleet --address="$head_address:$PORT" --replicas="${#machines[@]}" --tp="$SLURM_CPUS_PER_TASK" --model="$MODEL" &
wait $!
