#include "ranks/board.h"

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

void dtp_board_accuse(struct dtp_board *board, uint32_t rank, uint32_t failed)
{
    if (board && rank < DTP_BOARD_RANKS)
        atomic_store(&board->accused[rank], failed + 1);
}

uint32_t dtp_board_blamed(const struct dtp_board *board, uint32_t ranks)
{
    uint32_t blamed = UINT32_MAX, most = 0;
    for (uint32_t candidate = 0; candidate < ranks; candidate++) {
        uint32_t votes = 0;
        for (uint32_t rank = 0; rank < ranks && rank < DTP_BOARD_RANKS; rank++)
            votes += rank != candidate && atomic_load(&board->accused[rank]) == candidate + 1;
        if (votes > 0 && votes >= most) {
            most = votes;
            blamed = candidate;
        }
    }
    return blamed;
}

void dtp_board_clear(struct dtp_board *board)
{
    for (uint32_t rank = 0; rank < DTP_BOARD_RANKS; rank++)
        atomic_store(&board->accused[rank], 0);
    atomic_store(&board->regrouped, false);
}
