#!/usr/bin/env bash
# No file of the user's is lost, whatever an output is called: check_files.sh DTPLAN SOURCE_TREE
#
# Every command and every option that names an output, against every kind of input, by its own name and by links.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=200 # phrases are looked for in lines

enter "$@"

# spares FILE ARGUMENTS: refused with status 2 before any work, the file as it was, and nothing new beside it.
spares() {
    local file=$1 before after
    shift
    cp -- "$file" ../spared
    before=$(ls -A)
    expect 2 "$@"
    after=$(ls -A)
    cmp -s -- "$file" ../spared || failed "dtplan $* destroyed $file"
    [[ $before == "$after" ]] || failed "dtplan $* left $(diff <(echo "$before") <(echo "$after"))"
    ! grep -q 'step [0-9]' err || failed "dtplan $* ran"
}

mkdir work
cd work || exit 1
touch out err

printf '[model]\nmodel = gpt2\n[cluster]\ngpus = 8\ngpu = h100-sxm\n' >o.ini
cp -- "$source/tests/data/synthetic_machine.csv" m.csv
cat >c.json <<'EOF'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
 "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 300,
 "max_position_embeddings": 128, "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
EOF
job=(--model gpt2 --gpu h100-sxm --gpus 8)
tiny=(--layers 1 --hidden 32 --heads 2 --ffn 64 --vocab 300 --seq 16 --gpus 1 --strategy ddp --device host --threads 1 --steps 3)
expect 0 sweep "${job[@]}" --strategy ddp,full_shard -o sweep.csv
printf 'gpu_key,quantity,value,unit,kind,source\n' >cat.csv
for _ in {1..40}; do echo 'to be, or not to be, that is the question'; done >text.txt
head -40 "$source/scenarios/h200_torch_runs.csv" >runs.csv
printf -- '--layers 1 --hidden 32 --heads 2 --ffn 64 --vocab 300 --seq 16 --gpus 1 --device host\n' >l.scenarios

# ---- never onto an input -----------------------------------------------------------------------------------------------

spares o.ini report o.ini -o o.ini
says '--output would write over a file that is read, o.ini'
spares o.ini report o.ini -o o.ini --force # what is read is not replaced for any word
spares sweep.csv report sweep.csv -o ./sweep.csv
for option in --trace --timeline --memory; do
    spares o.ini simulate o.ini "$option" o.ini
    spares c.json simulate --model ./c.json --gpus 8 "$option" c.json
done
spares m.csv plan o.ini --machine m.csv --json --trace m.csv # no option of plan's
spares m.csv simulate o.ini --machine m.csv --timeline m.csv
spares cat.csv simulate o.ini --catalog cat.csv --memory cat.csv
spares o.ini sweep o.ini --gpus 8,16 -o o.ini
spares m.csv sweep o.ini --machine m.csv,m.csv -o m.csv
says 'would write over'
spares runs.csv backtest runs.csv -o runs.csv
spares cat.csv backtest runs.csv --catalog cat.csv -o cat.csv
spares m.csv backtest runs.csv --machine m.csv -o m.csv --force
for option in --trace --timeline --log --matmul-choices; do
    spares text.txt run "${tiny[@]}" --data text.txt "$option" text.txt
    spares o.ini run o.ini --runtime dtplan --device host "$option" o.ini
done
spares text.txt run "${tiny[@]}" --data text.txt --checkpoint text.txt
spares o.ini probe o.ini --device host -o o.ini
spares m.csv probe --machine m.csv --device host -o m.csv --force
spares l.scenarios validate l.scenarios -o l.scenarios
spares text.txt validate l.scenarios --data text.txt -o text.txt
echo "--layers 1 --device host --data text.txt --matmul-choices o.ini o.ini" >bad.scenarios
spares o.ini validate bad.scenarios -o new.csv
says 'would write over'
spares text.txt validate bad.scenarios --chart text.txt --force
says 'would write over'

# A scenario names files too.
printf '[model]\nmodel = ./c.json\n[cluster]\ngpus = 8\nmachine = m.csv\n' >names.ini
spares c.json simulate names.ini --trace c.json --force
says 'the file of a scenario'
spares m.csv simulate names.ini --memory m.csv --force
spares m.csv sweep names.ini --gpus 8,16 -o m.csv

# Links are the file.
ln o.ini hard.ini
ln -s o.ini soft.ini
ln -s nowhere.csv dangling.csv
for name in hard.ini soft.ini; do
    spares o.ini report o.ini -o "$name"
    spares o.ini report "$name" -o o.ini
    spares o.ini simulate o.ini --trace "$name"
done
mkdir -p a && ln -s .. a/up
spares o.ini report o.ini -o a/up/o.ini

# What lies beside a figure, and what follows from a name.
cp sweep.csv x.data.csv
spares x.data.csv chart strategies x.data.csv -o x.png
says 'the data beside --output would write over'
cp sweep.csv x.gp
spares x.gp chart strategies x.gp -o x.png
expect 0 simulate "${job[@]}" --memory t.csv
cp t.csv t.txt
spares t.txt chart memory t.txt -o t.txt
cp o.ini s.png
spares s.png simulate s.png --timeline s.csv --charts
cp o.ini s.gp
spares s.gp simulate s.gp --timeline s.csv --charts
cp m.csv one-refit.csv && cp m.csv one.csv
spares one-refit.csv validate names.ini --machine one-refit.csv --refit one.csv -o v.csv --force
says 'follows from --refit'
rm s.png s.gp x.gp x.data.csv t.txt

# ---- never onto another output -------------------------------------------------------------------------------------------

spares o.ini simulate o.ini --trace x --timeline x
says '--trace and --timeline would write one and the same file'
spares o.ini simulate o.ini --trace x --timeline ./a/../x
spares o.ini simulate o.ini --timeline nowhere.csv --memory dangling.csv
spares o.ini simulate o.ini --timeline t.csv --memory t.txt --charts
spares o.ini run "${tiny[@]}" --log l.csv --timeline l.csv
spares o.ini run "${tiny[@]}" --checkpoint l.csv --log l.csv
spares o.ini run "${tiny[@]}" --checkpoint a --log a/step-00000003
spares o.ini validate "${tiny[@]}" -o v.csv --chart v.txt --matmul-choices v.gp
expect 0 simulate o.ini --trace /dev/null --timeline /dev/null

# ---- what dtplan did not write is replaced with --force only ---------------------------------------------------------------

# replaces FILE ARGUMENTS: not without --force, not what was changed since, but its own.
replaces() {
    local file=$1
    shift
    rm -f -- "$file"
    echo 'my diary' >"$file"
    spares "$file" "$@"
    says "$file: is there already"
    expect 0 "$@" --force
    ! grep -q 'my diary' "$file" || failed "dtplan $* --force did not replace $file"
    expect 0 "$@"
    : >"$file" # empty: nothing is lost
    expect 0 "$@"
}
replaces page.html report o.ini -o page.html
replaces trace.json simulate o.ini --trace trace.json
replaces timeline.csv simulate o.ini --timeline timeline.csv
replaces memory.csv simulate o.ini --memory memory.csv
replaces program.txt simulate o.ini --write-program program.txt
replaces scored.csv backtest runs.csv -o scored.csv
replaces log.csv run "${tiny[@]}" --log log.csv
replaces trace.json run "${tiny[@]}" --trace trace.json
replaces timeline.csv run "${tiny[@]}" --timeline timeline.csv
# What was added to its tables and traces, too; a log that a kill cut short is still its own.
for file in trace.json timeline.csv memory.csv program.txt; do
    option=${file%.*}
    what=(simulate o.ini "--${option/program/write-program}" "$file")
    expect 0 "${what[@]}"
    echo mine >>"$file"
    spares "$file" "${what[@]}"
    says "$file: is there already"
    expect 0 "${what[@]}" --force
done
# Of a trace and a step program, which people edit, also what was put in between.
for line in "trace.json simulate o.ini --trace" "program.txt simulate o.ini --write-program" \
    "set.txt simulate --model gpt2 --gpus 2 --pp 2 --tied-head=false --accumulate 2 --write-program" \
    "roles.json simulate --program-file set.txt --trace"; do
    read -r file call <<<"$line"
    read -ra what <<<"$call $file"
    rm -f "$file"
    expect 0 "${what[@]}"
    expect 0 "${what[@]}"
    cp "$file" "whole-$file"
    case $file in
        *.json)
            sed -i '3s/"name":"/"name":"my /' "$file"
            python3 -m json.tool "$file" >/dev/null || failed "no JSON: $file"
            ;;
        *) sed -i '6i # my diary' "$file" ;;
    esac
    spares "$file" "${what[@]}"
    cp "whole-$file" "$file"
    expect 0 "${what[@]}"
done
expect 0 simulate --program-file set.txt
# The reason for which a sealed file cannot be written is said: here that it may not be as large.
(ulimit -f 8 && expect 3 simulate o.ini --trace large.json && says 'large.json: cannot be written: File too large') ||
    failed "a file that may not be as large"
echo mine >>scored.csv
spares scored.csv backtest runs.csv -o scored.csv
printf '7,1.2' >>log.csv
expect 0 run "${tiny[@]}" --log log.csv
sed -i 's/<h1/<h1 class="mine"/' page.html
spares page.html report o.ini -o page.html
mkdir v.ops && echo 'my times' >v.ops/0000.csv
expect 2 validate "${tiny[@]}" -o v.csv
[[ $(cat v.ops/0000.csv) == 'my times' ]] || failed "validate destroyed a file of a folder that was there"
rm -rf v.ops v.csv

if command -v gnuplot >/dev/null; then
    for ending in png svg pdf txt; do
        rm -f x.gp x.data.csv
        replaces "x.$ending" chart strategies sweep.csv -o "x.$ending"
        echo >>"x.$ending"
        spares "x.$ending" chart strategies sweep.csv -o "x.$ending"
        rm "x.$ending"
    done
    for file in x.gp x.data.csv; do
        expect 0 chart strategies sweep.csv -o x.png
        echo '# mine' >>"$file"
        spares "$file" chart strategies sweep.csv -o x.png
        says "$file: is there already"
        expect 0 chart strategies sweep.csv -o x.png --force
        ! grep -q '# mine' "$file" || failed "--force did not replace $file"
    done
    # What is sealed is still what it is called, for gnuplot and for whoever reads pictures.
    expect 0 simulate o.ini --timeline tl.csv --memory me.csv --charts
    expect 0 simulate o.ini --timeline tl.csv --memory me.csv --charts
    echo '# mine' >>tl.gp
    spares tl.gp simulate o.ini --timeline tl.csv --memory me.csv --charts
    says 'tl.gp: is there already'
    expect 0 chart strategies sweep.csv -o 'a b.png'
    rm 'a b.png'
    again=$(sed -n 's/.*; again: //p' out)
    eval "$again"
    [[ -s 'a b.png' ]] || failed "the command that is printed is not for a shell: $again"
    command -v python3 >/dev/null && { python3 - 'a b.png' x.png <<'EOF' || failed "no sound PNG"; }
import sys, zlib
for path in sys.argv[1:]:
    data = open(path, 'rb').read()
    assert data[:8] == b'\x89PNG\r\n\x1a\n'
    at, last = 8, b''
    while at < len(data):
        size = int.from_bytes(data[at:at + 4], 'big')
        last, end = data[at + 4:at + 8], at + 8 + size
        assert zlib.crc32(data[at + 4:end]) == int.from_bytes(data[end:end + 4], 'big'), last
        at = end + 4
    assert last == b'IEND'
EOF

    # Killed while it draws: no gnuplot goes on, and no partial figure stays. A gnuplot that takes its time stands for one
    # that has much to draw.
    mkdir slow
    printf '#!/bin/sh\necho $$ >%q\necho partial\nexec sleep 600\n' "$PWD/slow/pid" >slow/gnuplot
    chmod +x slow/gnuplot
    for signal in TERM INT KILL; do
        rm -f slow/pid k.*
        # What a script starts in the background ignores SIGINT.
        PATH=$PWD/slow:$PATH env --default-signal=INT "$program" simulate o.ini --timeline k.csv --charts >out 2>err </dev/null &
        pid=$!
        for _ in {1..200}; do
            [[ ! -s slow/pid ]] || break
            sleep 0.05
        done
        kill "-$signal" "$pid"
        wait "$pid" 2>/dev/null
        for _ in {1..100}; do
            kill -0 "$(cat slow/pid)" 2>/dev/null || break
            sleep 0.05
        done
        ! kill -0 "$(cat slow/pid)" 2>/dev/null || failed "SIG$signal left gnuplot"
        [[ -z $(find . -name '*tmp*' -o -name 'k.png') ]] || failed "SIG$signal left $(find . -name '*tmp*' -o -name 'k.png')"
    done
fi

# ---- places ----------------------------------------------------------------------------------------------------------------

# A link's own end is tried, and what it leads to is replaced whole.
ln -s /nonexistent/folder/x.json broken.json
expect 3 simulate o.ini --trace broken.json
[[ ! -s out ]] || failed "simulated before the output was tried"
ln -s target.json link.json
expect 0 simulate o.ini --trace link.json
[[ -L link.json && -s target.json ]] || failed "a link that leads nowhere yet was not written through"
"$program" report o.ini -o /dev/stdout >redirected.html 2>err </dev/null || failed "/dev/stdout: $(cat err)"
grep -q '</html>' redirected.html || failed "/dev/stdout in a file"

# "-" is standard output where that is the result, and standard input where a scenario or a table is; never a file.
expect 0 report o.ini -o -
says '</html>' out
expect 0 sweep o.ini --gpus 8,16 -o -
[[ $(wc -l <out) == 3 ]] || failed "sweep -o -: $(head -c 300 out)"
expect 0 chart strategies sweep.csv -o -
for option in --trace --timeline --memory; do
    expect 2 simulate o.ini "$option" -
    says 'standard output is taken by the report'
done
expect 2 backtest runs.csv -o -
expect 2 probe --device host -o -
expect 2 run "${tiny[@]}" --log -
expect 2 run "${tiny[@]}" --checkpoint -
expect 2 run "${tiny[@]}" --data -
says 'reads files only'
expect 2 plan o.ini --catalog -
expect 2 plan - - --gpus 8
"$program" plan - --json <o.ini >stdin.json 2>err || failed "a scenario on standard input: $(cat err)"
"$program" plan o.ini --json 2>/dev/null | cmp -s - stdin.json || failed "a scenario on standard input is another"
"$program" chart strategies - <sweep.csv >out 2>err || failed "a table on standard input: $(cat err)"
"$program" backtest - <runs.csv >out 2>err || failed "runs on standard input: $(cat err)"
"$program" chart memory - <memory.csv >out 2>err
[[ $? == 2 ]] || failed "gnuplot reads standard input twice"
says 'a plain file'
[[ ! -e ./- ]] || failed "a file named -"

# A reader that goes away cannot be gone on for.
"$program" sweep --params 7B --gpus 8..1024x2 --micro-batch 1..200 2>err | head -1 >/dev/null
! grep -q 'goes on' err || failed "sweep | head: $(cat err)"
says 'the rows are not complete'

# ---- checkpoints -------------------------------------------------------------------------------------------------------------

expect 0 run "${tiny[@]}" --checkpoint ck
find ck | sort >before
expect 2 run "${tiny[@]}" --seed 2 --checkpoint ck
says 'holds checkpoints of an earlier run, up to step 3; go on from them with --resume, or name another folder'
find ck | sort | cmp -s - before || failed "another run's checkpoints were touched"
expect 2 run "${tiny[@]}" --gpus 2 --checkpoint ck
[[ $(wc -l <err) == 1 ]] || failed "two ranks do not say once what one finds: $(cat err)"
expect 0 run "${tiny[@]}" --steps 5 --checkpoint ck --resume
for folder in o.ini /proc/nowhere missing/ck; do
    expect 3 run "${tiny[@]}" --checkpoint "$folder"
    says "$folder: checkpoints cannot be written there"
    ! grep -q 'step [0-9]' err || failed "--checkpoint $folder: it ran first"
done
! compgen -G 'ck/*try*' || failed "what was tried stays"

# ---- data --------------------------------------------------------------------------------------------------------------------

printf '\x93NUMPY\x01\x00v\x00{' >a.npy
printf 'PAR1%064d' 0 >a.parquet
gzip -c text.txt >a.gz
printf '\x10\0\0\0\0\0\0\0{"a":%064d' 0 >a.safetensors
for what in 'npy NumPy' 'parquet Parquet' 'gz gzip' 'safetensors safetensors'; do
    for name in "a.${what% *}" disguised.bin; do
        [[ -e $name ]] || cp "a.${what% *}" "$name"
        expect 2 run "${tiny[@]}" --data "$name"
        says "$name: is "
        says "${what#* }"
    done
    rm disguised.bin
done
expect 0 run "${tiny[@]}" --data a.gz --data-type bytes # who says so means it
# Token 301 of a vocabulary of 300 stands where the run reads late; both ranks say it once, at once.
python3 -c "
import struct
t = [i % 300 for i in range(4000)]
t[3000] = 301
open('bad.u16', 'wb').write(struct.pack('<4000H', *t))
open('bad.u32', 'wb').write(struct.pack('<4000I', *t))"
for name in bad.u16 bad.u32; do
    SECONDS=0
    expect 2 run "${tiny[@]}" --gpus 2 --steps 1000 --data "$name"
    says "$name: token 3000 of the file is 301, beyond the model's vocabulary of 300"
    [[ $(wc -l <err) == 1 && $SECONDS -lt 30 ]] || failed "two ranks, $SECONDS s: $(cat err)"
done
# Ranks that are killed leave no shared memory, whenever that is.
[[ -z $(find /dev/shm -name 'dtplan-*' -newer o.ini 2>/dev/null) ]] || failed "shared memory with a name: $(ls /dev/shm)"
# A file that changes while it is read: whoever finds it says so, and all end at once.
python3 -c "
import struct
open('live.u16', 'wb').write(struct.pack('<64000H', *(i % 300 for i in range(64000))))"
SECONDS=0
timeout 100 "$program" run "${tiny[@]}" --gpus 2 --steps 1000000 --data live.u16 >out 2>err </dev/null &
pid=$!
for _ in {1..400}; do
    ! grep -q 'step ' err || break
    sleep 0.05
done
python3 -c "
import struct
with open('live.u16', 'r+b') as f: f.write(struct.pack('<64000H', *([9999] * 64000)))"
wait "$pid"
status=$?
[[ $status == 2 ]] || failed "a file that changes: exit status $status: $(cat err)"
says 'of the file is 9999, beyond'
((SECONDS < 45)) || failed "ranks ended $SECONDS s after one could not read"


# ---- pipes ---------------------------------------------------------------------------------------------------------------

# What nobody reads would hold up whoever opens it; where somebody reads, rows come as they are made.
mkfifo pipe
for line in "sweep ${job[*]} -o" "report o.ini -o" "simulate o.ini --trace" "run ${tiny[*]} --trace" "run ${tiny[*]} --log"; do
    # shellcheck disable=SC2086 # words
    timeout -k 5 60 "$program" $line pipe >out 2>err </dev/null
    status=$?
    [[ $status == 3 ]] || failed "exit status $status: dtplan $line pipe: $(head -c 600 err)"
    says 'pipe: is a pipe that nobody reads; start its reader first'
done
timeout -k 5 120 cat pipe >got &
exec 4>pipe # waits for the reader, however late it starts
expect 0 run "${tiny[@]}" --log pipe 4>&-
exec 4>&-
wait "$!"
[[ $(wc -l <got) == 4 ]] || failed "a log through a pipe: $(cat got)"

((failures == 0)) || { echo "$failures failed" && exit 1; }
