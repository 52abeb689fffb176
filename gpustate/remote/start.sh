# shellcheck shell=sh
# Takes the lock, writes a program down and starts it detached. @NONCE@, @RUN@, @SIZE@, @LOCK@,
# @LOCKRUN@, @EXPIRES@, @TAKE@, @AFTER@, @TOKEN@, @UNIT@ and @OFFSET@ are words of the order: it
# begins what its exec sends, and they would be as many variables.
# shellcheck disable=SC2034 # O: read by follow.sh
RUN=@RUN@
R=$G/runs/$RUN
N=@NONCE@
O=@OFFSET@
W=$R.@TOKEN@.new
AFTER=@AFTER@
printf '\n%s begin\n' $N
own() { [ "$(cat $G/lock/run)" = @LOCKRUN@ ]; }
held() { own || refuse "lock held $(cat $G/lock/info)"; }
holds_lock() { [ "$(cat $G/lock/token)" = @TOKEN@ ]; }
refuse() {
  holds_lock && rm -rf $G/lock
  rm -rf "$W"
  printf '%s refused %s\n' $N "$*"
  exit 1
}
# shellcheck disable=SC2010 # in the order of time; names are those of runs
newest() {
  newest_run=$(ls -1t $G/runs | grep -v '\.new$' | head -n 1)
  newest_run=${newest_run:-none}
}
# Whoever held the lock meanwhile has cleared away what attempts without a lock had written: that is
# no full disk.
full() {
  [ -d $W ] || {
    [ ! -d $G/lock ] || held
    newest
    refuse "overtaken $newest_run"
  }
  refuse "the disk of $G is full ($*); make room and run again"
}
script=$(head -c @SIZE@ | gzip -dc) || exit 1
# shellcheck disable=SC2174 # the folders above are not ours
mkdir -p -m 0700 $G $G/runs || refuse "$G cannot be made (read-only or full disk?)"
if [ ! -d $R ]; then
  # Is there room for the program, the journal and what has to be kept?
  mkdir -m 0700 $W || {
    [ -w $G ] || refuse "$G is read-only; mount it for writing and run again"
    refuse "the disk of $G is full (no folder can be made); make room and run again"
  }
  dd if=/dev/zero of=$W/room bs=65536 count=32 && sync $W/room || full "2 MiB are needed"
  rm -f $W/room
  # The lock: a folder that appears whole, by renaming.
  new_lock=$W/lock
  mkdir $new_lock && printf %s @LOCK@ >$new_lock/info && printf %s @LOCKRUN@ >$new_lock/run &&
    printf %s @EXPIRES@ >$new_lock/expires && printf %s @TOKEN@ >$new_lock/token ||
    full "the lock cannot be written"
  holder=
  locked=
  [ -d $G/lock ] && locked=1 && holder=$(cat $G/lock/run)
  if [ $locked ] && [ "$holder" != @LOCKRUN@ ]; then
    expires=$(cat $G/lock/expires)
    if [ "$holder" != @TAKE@ ] && [ "$expires" -gt "$(date +%s)" ]; then
      held
    # Only what was found expired or dead is broken, not what somebody has put in its place
    # meanwhile.
    elif mv -T $G/lock $W/broken && [ "$(cat $W/broken/run)" != "$holder" ]; then
      mv -T $W/broken $G/lock
      held
    fi
    rm -rf $W/broken
  fi
  if own; then
    # Kept from the stage before, or taken by another attempt of this run: renewed.
    for f in info expires token; do
      cp $new_lock/$f $G/lock/.$f && mv -f $G/lock/.$f $G/lock/$f
    done
  else
    mv -T $new_lock $G/lock || held
  fi
  rm -rf $new_lock
  # An order that was held up on its way must not be carried out after that of another run.
  newest
  [ "$AFTER" = - ] || [ "$newest_run" = "$AFTER" ] || [ "$newest_run" = "$RUN" ] ||
    refuse "overtaken $newest_run"
  (
    R=$W
    export R
    eval "$script
"
  ) && [ "$(cat $W/complete)" = yes ] || full "the program cannot be written"
  sync $W/*
  sync $W
  # Another attempt was faster, and what it started may have ended and let go of the lock before we
  # took it.
  mv -T $W $R || {
    rm -rf $W
    grep -q '"e":"end"' $R/journal && holds_lock && rm -rf $G/lock
  }
  sync $G/runs
  # What attempts of other runs left; they had no lock. Ten runs are kept.
  for d in $G/runs/*.new; do
    case $d in "$R".*) ;; *) rm -rf "$d" ;; esac
  done
  ls -1t $G/runs | tail -n +11 | while read -r d; do [ "$d" = "$RUN" ] || rm -rf "$G/runs/$d"; done
fi
if [ ! -s $R/journal ]; then
  # mkdir decides who starts it when two ask at once; a start that died before its first entry is
  # made again.
  start=1
  if ! mkdir $R/started; then
    polls=0
    while [ ! -s $R/pid ] && [ $polls -lt 100 ]; do
      sleep 0.05
      polls=$((polls + 1))
    done
    if [ -s $R/journal ] || { read -r pid <$R/pid && kill -0 $pid; }; then start=; fi
  fi
  if [ $start ]; then
    : >>$R/journal
    if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
      systemd-run --quiet --collect --unit=gpustate-$RUN@UNIT@ --property=KillMode=process \
        --property=OOMScoreAdjust=-500 --property=TimeoutStopSec=30 --setenv=PATH="$PATH" sh \
        $R/program >/dev/null </dev/null || [ -s $R/journal ] || {
        rm -rf $R
        refuse "systemd-run does not start the program; is systemd healthy there?"
      }
    else
      setsid sh $R/program >/dev/null 2>&1 </dev/null &
    fi
  fi
fi
