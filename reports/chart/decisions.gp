# Left: the rank that each run of a sweep was predicted to have against the one it had, 1 = fastest. Right: for each sweep
# the measured throughput of what is predicted fastest, as a share of the best that was measured.
stats ARG1 using (note(strcol(1)), column(2)):3 skip 1 nooutput
most = STATS_max_x > STATS_max_y ? STATS_max_x : STATS_max_y
stats ARG1 using 4 skip 1 nooutput
set multiplot layout 1,2 margins 0.09,0.97,foot + 0.2,0.87 spacing 0.11,0 title ARG3
eval below(5)
what = "predicted rank, 1 = fastest"
if (plain) { set title what } else { set ylabel what }
set xlabel "measured rank"
set xrange [0:most + 1]
set yrange [0:most + 1]
set samples 200
plot x with lines lc rgb "#999999" lw 1 title "predicted = measured", \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):3 skip 1 \
    with points lc rgb hue(k) pt mark(k) ps 1.1 * dot title word(names, k)
unset key
what = "of the best: 1 = nothing lost"
if (plain) { set title what } else { set ylabel what }
set xlabel "sweep"
set xrange [0.5:count + 0.5]
set xtics 1
set yrange [0:1.05]
plot 1 with lines lc rgb "#999999" lw 1, \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? k : NaN):4 skip 1 \
    with points lc rgb hue(k) pt mark(k) ps 2 * dot
unset multiplot
