# Lanes of one step: all of it; below, where there are few of them, a part of it enlarged. Columns: name and number of the
# lane, kind, begin and end in seconds, seconds in which it is busy, whether the box is of the enlarged part.
names_of_kinds = "'matmul' 'attention' 'memory-bound kernels' 'all-gather' 'reduce-scatter' 'all-reduce' 'other collective' \
'between stages' 'host to GPU' 'GPU to host' 'host' 'storage'"
colours = "#0072B2 #56B4E9 #F0E442 #D55E00 #CC79A7 #E69F00 #333333 #7570b3 #009E73 #66c2a5 #999999 #d9d9d9"
# One pass finds the lanes' names and the kinds that are used.
seen = ""
see(kind) = strstrt(seen, " " . kind . " ") ? 1 : (seen = seen . " " . kind . " ", 1)
from = 1e30
to = 0
part(begin, end) = (from = begin < from ? begin : from, to = end > to ? end : to, end)
stats ARG1 using (note(strcol(1)), see(strcol(3)), $7 == 1 ? part($4 * 1000, $5 * 1000) : 0, column(5)):2 skip 1 nooutput
last_ms = STATS_max_x * 1000
lanes = STATS_max_y + 1
enlarged = to > from
shown = ""
do for [k=0:11] {
    if (strstrt(seen, " " . k . " ")) { shown = shown . " " . k }
}
set style fill solid 1 noborder
unset grid
set yrange [-0.6:lanes - 0.4]
set ytics ("" 0)
if (lanes > 30 && !plain) { set ytics font ",11" }
longest = 7
do for [i=1:lanes] { longest = strlen(word(names, i)) > longest ? strlen(word(names, i)) : longest }
left = plain ? (longest + 3.0) / columns : 0.03 + 0.0082 * longest
do for [i=1:lanes] { set ytics add (word(names, i) lanes - i) }
box(k, part) = $3 == k && $7 == part ? $4 * 1000 : NaN
height(lane) = lanes - 1 - lane
set multiplot layout (enlarged ? 2 : 1),1 \
    margins left,0.97,(enlarged ? 0.12 : 0.1),0.86 spacing 0.14 title ARG3
set key at screen 0.535, screen (enlarged || lanes < 13 ? 0.91 : 0.9) center center horizontal Left reverse samplen 1.5
set xrange [0:last_ms]
set xlabel "ms: the whole step"
plot for [i=1:words(shown)] ARG1 \
    using (box(int(word(shown, i)), 0)):(height($2)):($4 * 1000):($5 * 1000):(height($2) - 0.4):(height($2) + 0.4) \
    skip 1 with boxxyerror lc rgb word(colours, int(word(shown, i)) + 1) title word(names_of_kinds, int(word(shown, i)) + 1)
if (enlarged) {
    unset key
    set style fill solid 1 border rgb "#555555"
    set xrange [from:to]
    set xlabel sprintf("ms: %.3g of %.4g ms enlarged", to - from, last_ms)
    plot for [i=1:words(shown)] ARG1 \
        using (box(int(word(shown, i)), 1)):(height($2)):($4 * 1000):($5 * 1000):(height($2) - 0.4):(height($2) + 0.4) \
        skip 1 with boxxyerror lc rgb word(colours, int(word(shown, i)) + 1)
}
unset multiplot
