# shellcheck shell=sh
# Writes the job's number into the file of each of its GPUs. FOLDER: of these files; GPUS: names,
# in the order of gres.conf. Slurm's prolog. Ends with 0 always: Slurm drains a node whose prolog
# fails.
# shellcheck disable=SC2154 # FOLDER, GPUS: set by the loader; the others by slurmd
umask 022
mkdir -p "$FOLDER" && cd "$FOLDER" || exit 0
exec 9<. && flock 9
# No epilog ran for jobs of an earlier boot.
[ -e /run/gpustate-job-mapping ] || {
  rm -f [0-9]*
  : >/run/gpustate-job-mapping
}
index=0
for gpu in $GPUS; do
  case ,$SLURM_JOB_GPUS, in
    *,$index,*) grep -qsx "$SLURM_JOB_ID" "$gpu" || echo "$SLURM_JOB_ID" >>"$gpu" ;;
  esac
  index=$((index + 1))
done
exit 0
