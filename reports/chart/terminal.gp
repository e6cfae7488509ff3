# Drawn by gnuplot 5.2 or later from the table beside it: gnuplot -c THIS.gp TABLE.csv FIGURE [TITLE]
# FIGURE ends in .png, .svg, .pdf or .txt; -.png, -.svg and so on write to standard output. Colours are Okabe and Ito's,
# which the colour-blind tell apart; lines also differ in dashes and points, and neighbours in lightness, for print.
if (ARGC < 2) { print "usage: gnuplot -c THIS.gp TABLE.csv FIGURE.png|.svg|.pdf|.txt [TITLE]"; exit status 1 }
ending = strlen(ARG2) > 4 ? ARG2[strlen(ARG2) - 3:strlen(ARG2)] : ""
plain = ending eq ".txt"
set encoding utf8
if (!exists("columns")) { columns = 100 }
if (plain) { set terminal dumb size columns,30 noenhanced } else { \
if (ending eq ".svg") { set terminal svg size 1200,675 noenhanced font "sans-serif,15" linewidth 1.2 background "#ffffff" } else { \
if (ending eq ".pdf") { set terminal pdfcairo size 24cm,13.5cm noenhanced font "sans,11" linewidth 1.5 } else { \
set terminal pngcairo size 1600,900 noenhanced font "sans,17" linewidth 2 } } }
if (ARG2[1:2] ne "-.") { set output ARG2 }
# Points and what stands below the axis take more room in some of them.
dot = ending eq ".svg" || ending eq ".pdf" ? 0.65 : 1
foot = ending eq ".svg" ? 0.155 : 0.125
set datafile separator ","
set tics out nomirror
set border 3
if (!plain) { set grid lt 1 lc rgb "#d9d9d9" lw 0.5 }
set style fill solid 1 noborder
hue(k) = word("#0072B2 #E69F00 #009E73 #D55E00 #CC79A7 #56B4E9 #000000 #999999", (k - 1) % 8 + 1)
dash(k) = int(word("1 2 4 5 1 3 2 4", (k - 1) % 8 + 1))
mark(k) = int(word("7 5 9 13 11 6 4 8", (k - 1) % 8 + 1))
# The key below the axis, in so many rows.
below(rows) = sprintf("set key at screen 0.5,0.015 center bottom maxrows %d Left reverse samplen 3 spacing 1.1; \
set bmargin at screen %.3f", rows, foot + 0.034 * rows)
# From `least` to `most` on a logarithmic axis where that shows more, with a margin to either side. Powers of ten
# are short, other ticks written out: 1.1k and 1.2k would both be rounded to 1k.
wide(least, most) = most > 60 * least
range(axis, least, most) = wide(least, most) \
    ? sprintf("set logscale %s; set %srange [%g:%g]; set format %s \"%%.0s%%c\"", axis, axis, least / 1.3, most * 1.3, axis) \
    : sprintf("set %srange [0:%g]; set format %s \"%%.10g\"", axis, most * 1.1, axis)
# The texts of column 1, in the order of their appearance, as words for word().
names = ""; count = 0
note(text) = strstrt(names, "'" . text . "'") ? 0 : (names = names . " '" . text . "'", count = count + 1)
