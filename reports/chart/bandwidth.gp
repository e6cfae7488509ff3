# Bus bandwidth of collectives against their size: points measured, lines fitted (time = latency + sent bytes / rate).
stats ARG1 using (note(strcol(1)), column(2)) skip 1 nooutput
set title ARG3
set xlabel "size of the collective"
set ylabel "bus bandwidth of each GPU, GB/s (10^9 bytes sent)"
set logscale x 2
set xrange [STATS_min * 0.7:STATS_max * 1.4]
set yrange [0:*]
# IEC 80000-13 writes Ki, gnuplot's own prefix is ki.
bytes(k) = sprintf("%d %s", 2**(k % 10), word("B KiB MiB GiB TiB", k / 10 + 1))
set xtics ("" 1)
do for [k=0:49:STATS_max / STATS_min > 2.0**12 ? 4 : 2] { set xtics add (bytes(k) 2**k) }
eval below(3)
# Of text neither colours nor dashes say which points a line was fitted to: there each of both has its name.
fitted(k) = plain ? word(names, k) . ", fitted" : ""
measured(k) = plain ? word(names, k) . ", measured" : ""
if (plain) { eval below(2 * count) }
plot for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):($4 / 1e9) skip 1 \
    with lines lc rgb hue(k) dt dash(k) lw 1.5 title fitted(k), \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):($3 / 1e9) skip 1 \
    with points lc rgb hue(k) pt mark(k) ps 1.3 * dot title measured(k), \
    for [k=1:plain ? 0 : count] NaN with linespoints lc rgb hue(k) dt dash(k) pt mark(k) ps 1.3 * dot lw 1.5 \
    title word(names, k)
