# Device memory against micro batch, a line a plan; what the card has is the black line.
GiB = 2.0**30
stats ARG1 using (note(strcol(1)), column(3) / GiB) skip 1 nooutput
top = STATS_max
stats ARG1 using ($4 / GiB) skip 1 nooutput
capacity = STATS_max
set title ARG3
set xlabel "micro batch, sequences"
set ylabel "device memory at the peak, GiB"
set logscale x 2
stats ARG1 using 2 skip 1 nooutput
set xrange [STATS_min * 0.93:STATS_max * 1.07]
set yrange [0:(top > capacity ? top : capacity) * 1.08]
eval below(3)
plot capacity with lines lw 2.5 lc rgb "black" title sprintf("capacity %.1f GiB", capacity), \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):($3 / GiB) skip 1 \
    with linespoints lc rgb hue(k) dt dash(k) pt mark(k) ps 1.3 * dot lw 1.5 title word(names, k)
