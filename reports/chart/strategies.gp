# Memory at the peak, a bar a plan, by owner; the black mark is what the card has.
stats ARG1 using (note(strcol(1)), column(2)) skip 1 nooutput
plans = STATS_records
widest = STATS_max
GiB = 2.0**30
owners = "'parameters' 'optimizer state' 'gradients' 'activations' 'logits and loss' 'weights in compute dtype' \
'all-gather buffers' 'gradient reduction buffers' 'workspaces and temporaries' 'cache of the allocator' 'CUDA context' 'NCCL'"
colours = "#0072B2 #56B4E9 #009E73 #E69F00 #D55E00 #F0E442 #CC79A7 #333333 #999999 #d9d9d9 #8c6d31 #5f5f9e"
part(k) = valid(k) ? column(k) : 0
upto(k) = (sum [i=3:k] part(i)) / GiB
height(row) = plans - row
shown = ""
do for [k=3:14] {
    stats ARG1 using (part(k)) skip 1 nooutput
    if (STATS_max > 0) { shown = shown . " " . k }
}
stats ARG1 using (upto(14)) skip 1 nooutput
widest = STATS_max > widest / GiB ? STATS_max : widest / GiB
set title ARG3
set xlabel "GiB on the fullest GPU at the peak of a step"
set xrange [0:widest * 1.14]
set yrange [0.4:plans + 0.6]
if (!plain) { set grid noytics xtics }
# A figure that the mark would cross stands behind it.
clear(end, capacity) = capacity >= end && capacity < end + 0.075 * widest ? capacity : end
eval below(5)
thick = plans > 12 ? 0.4 : 0.32
plot for [i=1:words(shown)] ARG1 \
    using (upto(int(word(shown, i)))):(height($0)):(upto(int(word(shown, i)) - 1)):(upto(int(word(shown, i)))):(height($0) - thick):(height($0) + thick):ytic(strcol(1)) \
    skip 1 with boxxyerror lc rgb word(colours, int(word(shown, i)) - 2) title word(owners, int(word(shown, i)) - 2), \
    ARG1 using ($2 / GiB):(height($0) - 0.5):(0):(1) skip 1 with vectors nohead lw 2.5 lc rgb "black" title "capacity", \
    ARG1 using (clear(upto(14), part(2) / GiB)):(height($0)):(sprintf("%.1f", upto(14))) skip 1 with labels left offset 0.6,0 notitle
