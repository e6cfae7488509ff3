# Lanes of one step, a stream each; below, a part of it enlarged.
kinds = "matmul attention memory all_gather reduce_scatter all_reduce other copy host"
names = "'matmul' 'attention' 'memory-bound kernels' 'all-gather' 'reduce-scatter' 'all-reduce' 'other collective' \
'host copy' 'host and storage'"
colours = "#0072B2 #56B4E9 #F0E442 #D55E00 #CC79A7 #E69F00 #333333 #009E73 #999999"
kind(op, class) = class eq "collective" ? (strstrt(kinds, op) ? op : "other") : \
    class eq "upload" || class eq "download" ? "copy" : class eq "host" || class eq "storage" ? "host" : class
is(k) = (column(10) > column(9) && kind(strcol(3), strcol(4)) eq word(kinds, k))
# Lanes and colours that are used, in their order.
streams = "compute copy tensor gather reduce replicate upload download host storage"
# One pass finds them: a table may have a hundred thousand rows.
seen_lanes = " "
seen_kinds = " "
add(list, what) = strstrt(list, " " . what . " ") ? list : list . what . " "
see(stream, kind) = (seen_lanes = add(seen_lanes, stream), seen_kinds = add(seen_kinds, kind), 1)
stats ARG1 using (column(10) > column(9) ? see(strcol(2), kind(strcol(3), strcol(4))) : 0):10 skip 1 nooutput
last_ms = STATS_max_y * 1000
lanes = ""
do for [stream in streams] {
    if (strstrt(seen_lanes, " " . stream . " ")) { lanes = lanes . " " . stream }
}
shown = ""
do for [k=1:words(kinds)] {
    if (strstrt(seen_kinds, " " . word(kinds, k) . " ")) { shown = shown . " " . k }
}
lane(stream) = sum [i=1:words(lanes)] (word(lanes, i) eq stream ? words(lanes) - i : 0)
set style fill solid 1 noborder
unset grid
set yrange [-0.6:words(lanes) - 0.4]
set ytics ("" 0)
do for [i=1:words(lanes)] { set ytics add (word(lanes, i) words(lanes) - i) }
box(k) = (is(k) ? column(9) * 1000 : NaN)
set multiplot layout 2,1 margins (plain ? 0.11 : 0.09),0.97,0.12,0.86 spacing 0.14 title ARG3
set key at screen 0.535, screen 0.91 center center horizontal Left reverse samplen 1.5
set xrange [0:last_ms]
set xlabel "ms: the whole step"
plot for [i=1:words(shown)] ARG1 \
    using (box(int(word(shown, i)))):(lane(strcol(2))):($9 * 1000):($10 * 1000):(lane(strcol(2)) - 0.4):(lane(strcol(2)) + 0.4) \
    skip 1 with boxxyerror lc rgb word(colours, int(word(shown, i))) title word(names, int(word(shown, i)))
unset key
set style fill solid 1 border rgb "#555555"
# Where a collective of gradients runs, for there most streams are busy: the one in the middle of all of them, from a little
# before it on; else near the middle of the step.
begins = 0.55 * last_ms
takes = 0
do for [i=1:words(shown)] {
    k = int(word(shown, i))
    if (k > 4 && k < 8) {
        stats ARG1 using (is(k) ? column(9) * 1000 : NaN):(is(k) ? (column(10) - column(9)) * 1000 : NaN) skip 1 nooutput
        begins = STATS_median_x
        takes = STATS_median_y
    }
}
width = last_ms > 20 * 15 ? 15 : last_ms / 20
width = width < 1.5 * takes ? 1.5 * takes : width
from = begins - 0.2 * width
from = from < 0 ? 0 : from + width > last_ms ? last_ms - width : from
to = from + width
set xrange [from:to]
set xlabel sprintf("ms: %.3g of %.4g ms enlarged", to - from, last_ms)
inside(k) = (is(k) && column(9) * 1000 < to && column(10) * 1000 > from ? column(9) * 1000 : NaN)
clip(ms) = (ms < from ? from : ms > to ? to : ms)
plot for [i=1:words(shown)] ARG1 \
    using (inside(int(word(shown, i)))):(lane(strcol(2))):(clip($9 * 1000)):(clip($10 * 1000)):(lane(strcol(2)) - 0.4):(lane(strcol(2)) + 0.4) \
    skip 1 with boxxyerror lc rgb word(colours, int(word(shown, i)))
unset multiplot
