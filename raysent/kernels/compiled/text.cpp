// Text in UTF-8: marks hidden from a sentence splitter, its pieces joined, tokens of ASCII chunks, a table of chunks.
//
// The rules are those of data/corpus/documents.py and data/vocabulary/tokens.py, which are the reference.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

using std::string_view;

// Bits of a character's classes, and the number of characters that have them.
constexpr uint8_t SPACE = 1, WORD = 2, UPPER = 4;
constexpr uint32_t NUM_CLASSES = 1 << 17;
constexpr uint32_t LEFT_DOUBLE = 0x201C, RIGHT_DOUBLE = 0x201D, LEFT_SINGLE = 0x2018, RIGHT_SINGLE = 0x2019;
constexpr uint32_t EM_DASH = 0x2014, EN_DASH = 0x2013, ELLIPSIS = 0x2026;
constexpr string_view PARAGRAPH_BREAK = "\n\n";

constexpr uint64_t EACH_BYTE = 0x0101010101010101, NOT_ASCII = 0x80 * EACH_BYTE;

template <class Number = uint64_t>
uint64_t load(const void* p) {
    Number bytes;
    memcpy(&bytes, p, sizeof(bytes));
    return bytes;
}

int size_of(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

// Returns the character that begins at `p`.
uint32_t character(const uint8_t* p) {
    switch (size_of(p[0])) {
        case 1: return p[0];
        case 2: return (p[0] & 0x1F) << 6 | (p[1] & 0x3F);
        case 3: return (p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        default: return (p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F);
    }
}

// Returns where the character before `p` begins; there must be one.
const uint8_t* previous(const uint8_t* p) {
    do
        p--;
    while ((*p & 0xC0) == 0x80);
    return p;
}

const uint8_t* find(const uint8_t* first, const uint8_t* last, string_view text) {
    const auto* found = static_cast<const uint8_t*>(memmem(first, last - first, text.data(), text.size()));
    return found ? found : last;
}

bool is_any(uint32_t c, std::initializer_list<uint32_t> of) { return std::find(of.begin(), of.end(), c) != of.end(); }

// The classes of characters; those after the last one have none.
struct Classes {
    const uint8_t* of;

    bool is(const uint8_t* p, uint8_t bit) const {
        const uint32_t c = *p < 0x80 ? *p : character(p);
        return c < NUM_CLASSES && of[c] & bit;
    }

    const uint8_t* skip_space(const uint8_t* p, const uint8_t* last) const {
        while (p < last && is(p, SPACE))
            p += size_of(*p);
        return p;
    }

    const uint8_t* drop_space(const uint8_t* first, const uint8_t* last) const {
        while (last > first && is(previous(last), SPACE))
            last = previous(last);
        return last;
    }

    // Returns where the last white space begins, if opening marks alone follow it; else `last`.
    const uint8_t* before_opening(const uint8_t* first, const uint8_t* last) const {
        const uint8_t* p = last;
        while (p > first && !is(previous(p), SPACE))
            p = previous(p);
        if (p == first || p == last) return last;
        const uint8_t* space = previous(p);
        while (p < last) {
            const bool is_double_backquote = *p == '`' && p + 1 < last && p[1] == '`';
            if (!is_double_backquote && !is_any(character(p), {'"', '\'', LEFT_DOUBLE, LEFT_SINGLE, '(', '['}))
                return last;
            p += is_double_backquote ? 2 : size_of(*p);
        }
        return space;
    }

    // Returns whether the character at `p` is white space on which the splitter fails, after text from `first` to
    // `end`.
    bool is_unreadable(const uint8_t* first, const uint8_t* end, const uint8_t* p, const uint8_t* last) const {
        if (*p < 0x80 || !is(p, SPACE) || p + size_of(*p) == last || p[size_of(*p)] != '.') return false;
        end = drop_space(first, end);
        return end > first && end[-1] >= 'A' && end[-1] <= 'Z';
    }

    // Returns whether a piece continues the sentence before it.
    bool belongs(string_view before, const uint8_t* first, const uint8_t* last) const {
        const uint8_t* p = first;
        while (p < last && !is(p, WORD))
            p += size_of(*p);
        if (p == last) return true;
        p = first;
        while (p < last && (is_any(character(p), {'-', EM_DASH, EN_DASH, ',', ';', ':'}) || is(p, SPACE)))
            p += size_of(*p);
        if (p == last || *p < 'a' || *p > 'z') return false;
        const auto* end = reinterpret_cast<const uint8_t*>(before.data()) + before.size();
        if (before.size() >= 2 && before.substr(before.size() - 2) == "..") return true;
        return is_any(character(previous(end)),
                      {'!', '?', '"', '\'', RIGHT_DOUBLE, RIGHT_SINGLE, ')', ']', EM_DASH, EN_DASH, '-', ELLIPSIS});
    }
};

// Tokens of a chunk of ASCII characters; each function returns the end of a match at `p`, or nullptr.
struct Chunk {
    const char* last;
    const std::vector<string_view>& abbreviations;

    char at(const char* p) const { return p < last ? *p : '\n'; }
    static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
    static bool is_digit(char c) { return c >= '0' && c <= '9'; }
    static bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }
    bool is_word_at(const char* p) const { return is_word(at(p)); }
    bool is_at(const char* p, char lower) const { return (at(p) | 0x20) == lower; }

    // Returns whether one of some words of lower-case letters begins at `p`, in either case.
    bool is_any_at(const char* p, std::initializer_list<string_view> words) const {
        return std::any_of(words.begin(), words.end(), [&](string_view word) {
            const char* next = p;
            return std::all_of(word.begin(), word.end(), [&](char letter) { return is_at(next++, letter); });
        });
    }

    const char* skip_word(const char* p) const {
        while (is_word_at(p))
            p++;
        return p;
    }

    const char* dotted_letters(const char* p) const {
        int number = 0;
        for (; is_letter(at(p)) && at(p + 1) == '.'; p += 2)
            number++;
        return number >= 2 ? p : nullptr;
    }

    const char* abbreviation(const char* p) const {
        for (const string_view one : abbreviations) {
            const char* dot = p + one.size();
            if (dot < last && *dot == '.' && string_view(p, one.size()) == one && !is_word_at(dot + 1)) return dot + 1;
        }
        return nullptr;
    }

    // `can` of `cannot`.
    const char* can(const char* p) const { return is_any_at(p, {"cannot"}) && !is_word_at(p + 6) ? p + 3 : nullptr; }

    bool is_negation(const char* p) const {  // n't
        return is_at(p, 'n') && at(p + 1) == '\'' && is_at(p + 2, 't') && !is_word_at(p + 3);
    }

    // Letters before n't, in the case of either.
    const char* stem_of_negation(const char* p) const {
        if (!is_letter(at(p))) return nullptr;
        const char* end = p;
        while (is_letter(at(end)))
            end++;
        // The apostrophe ends the letters, so that only the last of them can be the n.
        if (end - p < 2 || !is_negation(end - 1)) return nullptr;
        const bool is_capital = end[-1] == 'N';
        return is_capital && end[1] != 'T' ? nullptr : end - 1;
    }

    const char* clitic(const char* p) const {  // 's, 'll, …
        if (at(p) != '\'') return nullptr;
        const bool is_one = is_any_at(p + 1, {"s", "m", "d"});
        if (is_one && !is_word_at(p + 2)) return p + 2;
        return is_any_at(p + 1, {"ll", "re", "ve"}) && !is_word_at(p + 3) ? p + 3 : nullptr;
    }

    const char* word(const char* p) const {
        if (!is_word_at(p)) return nullptr;
        p = skip_word(p);
        for (;;) {
            const char mark = at(p);
            const char* next = skip_word(p + 1);
            if (next == p + 1) return p;
            if (mark == '-' || mark == '.') {
                if (next[-1] == 'n' && at(next) == '\'' && is_at(next + 1, 't')) return p;
            } else if (mark == ',') {
                next = p + 1;
                while (is_digit(at(next)))
                    next++;
                if (next == p + 1) return p;
            } else if (mark != '\'' || clitic(p)) {
                return p;
            }
            p = next;
        }
    }

    const char* repeated(const char* p) const {  // dots or dashes
        const char mark = at(p);
        if ((mark != '.' && mark != '-') || at(p + 1) != mark) return nullptr;
        while (at(p) == mark)
            p++;
        return p;
    }

    // Returns the end of the token that begins at `p`; the first alternative of the pattern that matches.
    const char* token(const char* p) const {
        if (is_letter(*p)) {
            if (const char* end = dotted_letters(p)) return end;
            if (const char* end = abbreviation(p)) return end;
            if (const char* end = can(p)) return end;
            if (const char* end = stem_of_negation(p)) return end;
            if (is_negation(p)) return p + 3;
            return word(p);
        }
        if (last - p >= 5 && string_view(p, 5) == "<unk>") return p + 5;
        if (const char* end = clitic(p)) return end;
        if (const char* end = word(p)) return end;
        if (const char* end = repeated(p)) return end;
        return p + 1;
    }
};

// The bytes of a chunk of 1 to 16, as two numbers that identify it together with its size.
struct Key {
    uint64_t first = 0, second = 0;

    Key() = default;
    explicit Key(string_view chunk) {
        const char *p = chunk.data(), *last = p + chunk.size();
        if (chunk.size() >= 8) {
            first = load(p);
            second = load(last - 8);
        } else if (chunk.size() >= 4) {
            first = load<uint32_t>(p);
            second = load<uint32_t>(last - 4);
        } else {
            first = load<uint8_t>(p) | load<uint8_t>(p + chunk.size() / 2) << 8 | load<uint8_t>(last - 1) << 16;
        }
    }

    bool operator==(const Key& other) const { return first == other.first && second == other.second; }

    uint64_t hash() const {
        const auto product = static_cast<unsigned __int128>(first ^ 0xA0761D6478BD642F) * (second ^ 0xE7037ED1A0B428DB);
        return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
};

// Chunks and their rows: short ones by open addressing.
class ChunkRows {
 public:
    ChunkRows() : slots_(1 << 10) {}

    // Returns the row of a chunk, or -1.
    int32_t row(string_view chunk) const {
        if (chunk.size() > MAX_SHORT) {
            const auto found = long_.find(std::string(chunk));
            return found == long_.end() ? -1 : found->second;
        }
        return slots_[place(Key(chunk), chunk.size())].row;
    }

    // The chunk must not be there yet.
    void add(string_view chunk, int32_t row) {
        if (chunk.size() > MAX_SHORT) {
            long_.emplace(chunk, row);
            return;
        }
        if (2 * ++num_short_ > slots_.size()) grow();
        const Key key(chunk);
        slots_[place(key, chunk.size())] = {key, static_cast<uint32_t>(chunk.size()), row};
    }

    void clear() {
        if (size()) *this = ChunkRows();
    }

    size_t size() const { return num_short_ + long_.size(); }

 private:
    static constexpr size_t MAX_SHORT = 16;

    struct Slot {
        Key key;
        uint32_t size = 0;
        int32_t row = -1;
    };

    // Returns the slot of a chunk, or the free one in which it belongs.
    uint64_t place(const Key& key, size_t size) const {
        const uint64_t mask = slots_.size() - 1;
        uint64_t i = (key.hash() + size) & mask;
        while (slots_[i].row >= 0 && !(slots_[i].key == key && slots_[i].size == size))
            i = (i + 1) & mask;
        return i;
    }

    void grow() {
        std::vector<Slot> old(2 * slots_.size());
        old.swap(slots_);
        for (const Slot& slot : old)
            if (slot.row >= 0) slots_[place(slot.key, slot.size)] = slot;
    }

    std::vector<Slot> slots_;
    std::unordered_map<std::string, int32_t> long_;
    size_t num_short_ = 0;
};

struct ChunkTable {
    ChunkRows known, unknown;  // `unknown` is of one call
};

// Returns the first byte from `p` on that is not a visible ASCII character, or `last`.
const uint8_t* skip_visible(const uint8_t* p, const uint8_t* last) {
    for (; last - p >= 8; p += 8) {
        const uint64_t bytes = load(p);
        // The lowest bit is exact; others may come from a borrow.
        const uint64_t found = (bytes | ((bytes - 0x21 * EACH_BYTE) & ~bytes)) & NOT_ASCII;
        if (found) return p + __builtin_ctzll(found) / 8;
    }
    while (p < last && *p > 0x20 && *p < 0x80)
        p++;
    return p;
}

// Calls `use` with each chunk between white space.
template <class Use>
void for_each_chunk(const uint8_t* p, const uint8_t* last, const Classes& classes, Use use) {
    while (p < last) {
        const uint8_t* first = p;
        while ((p = skip_visible(p, last)) < last && !classes.is(p, SPACE))
            p += size_of(*p);
        if (p > first) use(string_view(reinterpret_cast<const char*>(first), p - first));
        p = classes.skip_space(p, last);
    }
}

}  // namespace

extern "C" {

// Writes a text with the marks that mislead the splitter replaced, character by character.
//   classes    bits of the first NUM_CLASSES characters
//   out        as many bytes as the text, or fewer
// Returns the number of bytes written, or -1 if a character has no classes.
int64_t text_hide_marks(const uint8_t* text, int64_t size, const uint8_t* class_bits, uint8_t* out) {
    const Classes classes{class_bits};
    const uint8_t* last = text + size;
    uint8_t* const start = out;
    uint32_t original = 0, shown = 0;  // the character before, and what stands for it before an opening ' is hidden
    for (const uint8_t* p = text; p < last; p += size_of(*p)) {
        if (*p < 0x80 && *p != '"' && *p != '\'') {
            original = shown = *out++ = *p;
            continue;
        }
        const uint32_t c = character(p);
        if (c >= NUM_CLASSES) return -1;
        const bool is_single = c == '\'' || c == RIGHT_SINGLE;
        const bool is_closing = is_single && is_any(original, {'.', '!', '?', ',', ';', ':', '-', EM_DASH});
        const bool is_mark = is_any(c, {'"', LEFT_DOUBLE, RIGHT_DOUBLE, LEFT_SINGLE}) || (c == '\'' && p == text);
        const bool is_hidden = is_mark || is_closing || classes.is_unreadable(start, out, p, last);
        const uint32_t now = is_hidden ? ' ' : c;
        const bool is_opening = now == '\'' && (shown == ' ' || shown == '\n');
        if (is_hidden || is_opening) {
            *out++ = ' ';
        } else {
            for (int i = 0; i < size_of(*p); i++)
                *out++ = p[i];
        }
        original = c;
        shown = now;
    }
    for (uint8_t* p = start; (p = const_cast<uint8_t*>(find(p, out, " me."))) < out; p += 4)
        memcpy(p, " it.", 4);
    return out - start;
}

// Writes the sentences of a text, made of the splitter's pieces of its hidden form, each followed by NUL.
//   pieces     each followed by NUL
//   classes    bits of the first NUM_CLASSES characters
//   out        2 * size + 1 bytes are enough: a joined piece is preceded by a blank, and a sentence has a character
// Returns the number of bytes written.
int64_t text_join_pieces(const uint8_t* text, int64_t size, const uint8_t* hidden, int64_t num_hidden,
                         const uint8_t* pieces, int64_t num_pieces, const uint8_t* class_bits, uint8_t* out) {
    const Classes classes{class_bits};
    const uint8_t *last = text + size, *hidden_last = hidden + num_hidden, *pieces_last = pieces + num_pieces;
    uint8_t* const begin = out;
    uint8_t* sentence_begin = out;  // of the last sentence, which ends before the NUL at out - 1
    const uint8_t *start = text, *end = text, *hidden_end = hidden;
    const auto write = [&](const uint8_t* from, const uint8_t* to) {
        memcpy(out, from, to - from);
        out += to - from;
        *out++ = 0;
    };
    bool is_first = true;
    for (const uint8_t* piece_end; pieces < pieces_last; pieces = piece_end + 1) {
        piece_end = static_cast<const uint8_t*>(memchr(pieces, 0, pieces_last - pieces));
        const string_view piece(reinterpret_cast<const char*>(pieces), piece_end - pieces);
        const bool is_here = static_cast<size_t>(hidden_last - hidden_end) >= piece.size() &&
                             !memcmp(hidden_end, piece.data(), piece.size());
        const uint8_t* found = is_here ? hidden_end : find(hidden_end, hidden_last, piece);
        if (found == hidden_last && !piece.empty()) continue;  // not found
        if (find(hidden_end, found, PARAGRAPH_BREAK) != found) is_first = true;
        // Both forms have the same number of characters.
        while (hidden_end < found + piece.size()) {
            const bool is_equal = found + piece.size() - hidden_end >= 8 && last - end >= 8 &&
                                  load(hidden_end) == load(end) && !(load(end) & NOT_ASCII);
            hidden_end += is_equal ? 8 : size_of(*hidden_end);
            end += is_equal ? 8 : size_of(*end);
        }
        const uint8_t *first = start, *stop = classes.drop_space(start, end);
        const bool is_opener =
            stop > first && is_any(character(previous(stop)), {'"', '\'', LEFT_DOUBLE, LEFT_SINGLE, '(', '[', '`'});
        if (is_opener && end < last && *end != '\n') {
            stop = classes.before_opening(first, stop);
            start = stop;
        } else {
            start = end;
        }
        first = classes.skip_space(first, stop);
        const bool ends_paragraph = piece.find(PARAGRAPH_BREAK) != string_view::npos;
        if (first == stop) {
            is_first = is_first || ends_paragraph;
            continue;
        }
        const string_view before(reinterpret_cast<const char*>(sentence_begin),
                                 out > begin ? out - 1 - sentence_begin : 0);
        if (!is_first && !classes.is(first, UPPER) && classes.belongs(before, first, stop)) {
            out[-1] = ' ';
        } else {
            sentence_begin = out;
            is_first = ends_paragraph;
        }
        write(first, stop);
    }
    const uint8_t* first = classes.skip_space(start, last);
    const uint8_t* stop = classes.drop_space(first, last);
    if (stop > first) write(first, stop);
    return out - begin;
}

// Writes the tokens of chunks of ASCII characters, each followed by a line feed.
//   chunks         each followed by a line feed
//   abbreviations  separated by |
//   out            2 * size bytes
//   counts         number of tokens of each chunk; -1 for a chunk with other characters, whose tokens are not written
// Returns the number of bytes written.
int64_t text_tokens(const char* chunks, int64_t size, const char* abbreviations, char* out, int64_t* counts) {
    std::vector<string_view> names;
    for (const char *p = abbreviations, *end; *p; p = *end ? end + 1 : end) {
        end = strchr(p, '|');
        if (!end) end = p + strlen(p);
        names.emplace_back(p, end - p);
    }
    char* const begin = out;
    const char* end;
    for (const char *p = chunks, *last = chunks + size; p < last; p = end + 1, counts++) {
        end = static_cast<const char*>(memchr(p, '\n', last - p));
        if (std::any_of(p, end, [](char c) { return c & 0x80; })) {
            *counts = -1;
            continue;
        }
        const Chunk chunk{end, names};
        for (*counts = 0; p < end; ++*counts) {
            const char* stop = chunk.token(p);
            memcpy(out, p, stop - p);
            out += stop - p;
            *out++ = '\n';
            p = stop;
        }
    }
    return out - begin;
}

ChunkTable* chunk_table_new() { return new ChunkTable(); }

void chunk_table_delete(ChunkTable* table) { delete table; }

// Looks up the chunks of a text.
//   rows      the row of each chunk; -1 - i for the i-th distinct chunk that is not known [size / 2 + 1]
//   unknown   the distinct chunks that are not known, each followed by a line feed [size + 1]
//   sizes     of two values: the number of chunks, and of the bytes of `unknown`
void chunk_table_find(ChunkTable* table, const uint8_t* text, int64_t size, const uint8_t* class_bits, int32_t* rows,
                      char* unknown, int64_t* sizes) {
    char* const begin = unknown;
    int32_t* const first = rows;
    table->unknown.clear();
    for_each_chunk(text, text + size, Classes{class_bits}, [&](string_view chunk) {
        int32_t row = table->known.row(chunk);
        if (row < 0) {
            int32_t index = table->unknown.row(chunk);
            if (index < 0) {
                index = static_cast<int32_t>(table->unknown.size());
                table->unknown.add(chunk, index);
                memcpy(unknown, chunk.data(), chunk.size());
                unknown += chunk.size();
                *unknown++ = '\n';
            }
            row = -1 - index;
        }
        *rows++ = row;
    });
    sizes[0] = rows - first;
    sizes[1] = unknown - begin;
}

// Adds the chunks of a text, none of which is known, with their rows.
void chunk_table_add(ChunkTable* table, const uint8_t* text, int64_t size, const uint8_t* class_bits,
                     const int64_t* rows) {
    for_each_chunk(text, text + size, Classes{class_bits},
                   [&](string_view chunk) { table->known.add(chunk, static_cast<int32_t>(*rows++)); });
}

// Writes the ids of rows of chunks, and the number of ids before each break.
//   ids, starts   the rows: row r is ids[starts[r] ... starts[r + 1] - 1]
//   out           the ids [capacity]; those that do not fit are left out
//   lengths       number of ids of each sentence: of the rows between two breaks, which are rows `break_row`
// Returns the number of ids, also of those left out.
int64_t chunk_table_expand(const int32_t* rows, int64_t num_rows, int32_t break_row, const int32_t* ids,
                           const int64_t* starts, int32_t* out, int64_t capacity, int64_t* lengths) {
    int64_t num_ids = 0, num_before = 0;
    for (int64_t i = 0; i < num_rows; i++) {
        const int64_t first = starts[rows[i]], stop = starts[rows[i] + 1];
        if (num_ids + stop - first <= capacity)
            for (int64_t j = first; j < stop; j++)
                out[num_ids + j - first] = ids[j];
        num_ids += stop - first;
        if (rows[i] == break_row) {
            *lengths++ = num_ids - num_before;
            num_before = num_ids;
        }
    }
    *lengths = num_ids - num_before;
    return num_ids;
}
}
