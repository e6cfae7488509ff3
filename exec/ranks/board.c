#include "ranks/board.h"

#include "base/clock.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define VARIABLE "DTPLAN_BOARD"
#define DESCRIPTOR_FROM 10 /* those below are for events and the like */

static struct dtp_board *map(int file)
{
    void *memory = mmap(NULL, sizeof(struct dtp_board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

struct dtp_board *dtp_board_make(void)
{
    char text[16];
    int made = memfd_create("dtplan board", 0), file = made < 0 ? -1 : fcntl(made, F_DUPFD, DESCRIPTOR_FROM);
    if (made >= 0)
        close(made);
    if (file < 0 || ftruncate(file, sizeof(struct dtp_board)) != 0)
        return NULL;
    snprintf(text, sizeof text, "%d", file);
    setenv(VARIABLE, text, 1);
    return map(file);
}

struct dtp_board *dtp_board_find(void)
{
    const char *text = getenv(VARIABLE);
    return text ? map(atoi(text)) : NULL;
}

void dtp_board_accuse(struct dtp_board *board, uint32_t rank, uint32_t failed, enum dtp_rank_loss how)
{
    double nobody_s = 0;
    if (!board || rank >= DTP_BOARD_RANKS)
        return;
    atomic_compare_exchange_strong(&board->noticed_s, &nobody_s, dtp_now_s());
    atomic_store(&board->how[rank], (unsigned)how);
    atomic_store(&board->accused[rank], failed + 1);
}

uint32_t dtp_board_blamed(const struct dtp_board *board, uint32_t ranks, enum dtp_rank_loss *how)
{
    uint32_t blamed = UINT32_MAX, most = 0;
    *how = DTP_LOSS_UNKNOWN;
    for (uint32_t candidate = 0; candidate < ranks; candidate++) {
        uint32_t votes = 0;
        unsigned told = DTP_LOSS_UNKNOWN;
        for (uint32_t rank = 0; rank < ranks && rank < DTP_BOARD_RANKS; rank++)
            if (rank != candidate && atomic_load(&board->accused[rank]) == candidate + 1) {
                votes++;
                told = atomic_load(&board->how[rank]);
            }
        if (votes > 0 && votes >= most) {
            most = votes;
            blamed = candidate;
            *how = told < DTP_LOSS_COUNT ? (enum dtp_rank_loss)told : DTP_LOSS_UNKNOWN;
        }
    }
    return blamed;
}

void dtp_board_clear(struct dtp_board *board)
{
    for (uint32_t rank = 0; rank < DTP_BOARD_RANKS; rank++) {
        atomic_store(&board->accused[rank], 0);
        atomic_store(&board->how[rank], DTP_LOSS_UNKNOWN);
    }
    atomic_store(&board->noticed_s, 0);
    atomic_store(&board->regrouped, false);
}
