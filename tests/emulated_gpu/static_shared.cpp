#include "tests/emulated_gpu/static_shared.h"

#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace pitstop::emulator {
namespace {

struct Symbols {
    std::map<std::uint64_t, std::string> functions{};      // address in the file -> name
    std::map<std::string, std::uint64_t> static_locals{};  // name -> bytes
};

class MappedFile {
  public:
    explicit MappedFile(const char* path) {
        const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
        struct stat file {};
        if (fd >= 0 && ::fstat(fd, &file) == 0) {
            bytes_ = static_cast<std::size_t>(file.st_size);
            void* const mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
            data_ = mapped == MAP_FAILED ? nullptr : static_cast<const char*>(mapped);
        }
        if (fd >= 0) ::close(fd);
    }
    ~MappedFile() {
        if (data_ != nullptr) ::munmap(const_cast<char*>(data_), bytes_);
    }
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    // Null: the file has fewer than `num` objects from `offset` on.
    template <class T>
    const T* at(std::uint64_t offset, std::uint64_t num = 1) const {
        if (data_ == nullptr || offset > bytes_ || num > (bytes_ - offset) / sizeof(T))
            return nullptr;
        return reinterpret_cast<const T*>(data_ + offset);
    }

  private:
    const char* data_ = nullptr;
    std::size_t bytes_ = 0;
};

void add_table(
    const MappedFile& file, const Elf64_Shdr& table, const Elf64_Shdr& names, Symbols& into
) {
    const std::uint64_t num = table.sh_size / sizeof(Elf64_Sym);
    const auto* const symbols = file.at<Elf64_Sym>(table.sh_offset, num);
    const auto* const text = file.at<char>(names.sh_offset, names.sh_size);
    if (symbols == nullptr || text == nullptr) return;
    for (std::uint64_t i = 0; i < num; ++i) {
        const Elf64_Sym& symbol = symbols[i];
        if (symbol.st_name >= names.sh_size || symbol.st_shndx == SHN_UNDEF) continue;
        const std::string name(
            text + symbol.st_name, ::strnlen(text + symbol.st_name, names.sh_size - symbol.st_name)
        );
        const unsigned kind = ELF64_ST_TYPE(symbol.st_info);
        if (kind == STT_FUNC && name.starts_with("_Z")) into.functions[symbol.st_value] = name;
        if (kind == STT_OBJECT && name.starts_with("_ZZ"))
            into.static_locals[name] = symbol.st_size;
    }
}

Symbols read_symbols(const char* path) {
    Symbols found;
    const MappedFile file(path);
    const auto* const header = file.at<Elf64_Ehdr>(0);
    if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return found;
    const auto* const sections = file.at<Elf64_Shdr>(header->e_shoff, header->e_shnum);
    if (sections == nullptr) return found;
    for (unsigned i = 0; i < header->e_shnum; ++i) {
        if (sections[i].sh_type == SHT_SYMTAB && sections[i].sh_link < header->e_shnum)
            add_table(file, sections[i], sections[sections[i].sh_link], found);
    }
    return found;
}

struct Cache {
    std::mutex mutex{};
    std::map<std::uint64_t, Symbols> of_file{};  // load address -> symbols
    std::map<const void*, std::size_t> of_kernel{};
};

std::size_t sum_of(const Symbols& symbols, std::uint64_t address) {
    const auto function = symbols.functions.find(address);
    if (function == symbols.functions.end()) return 0;
    const std::string prefix = "_ZZ" + function->second.substr(2) + "E";
    std::size_t bytes = 0;
    for (auto i = symbols.static_locals.lower_bound(prefix);
         i != symbols.static_locals.end() && i->first.starts_with(prefix);
         ++i)
        bytes += i->second;
    return bytes;
}

}  // namespace

std::size_t static_shared_bytes(const void* kernel) {
    static Cache* const cache = new Cache;
    const std::scoped_lock lock(cache->mutex);
    if (const auto known = cache->of_kernel.find(kernel); known != cache->of_kernel.end())
        return known->second;
    Dl_info info{};
    link_map* map = nullptr;
    if (::dladdr1(kernel, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) return 0;
    const auto base = static_cast<std::uint64_t>(map->l_addr);
    if (!cache->of_file.contains(base)) {
        const bool is_program = map->l_name == nullptr || *map->l_name == '\0';
        cache->of_file[base] = read_symbols(is_program ? "/proc/self/exe" : map->l_name);
    }
    const auto address = reinterpret_cast<std::uint64_t>(kernel) - base;
    return cache->of_kernel[kernel] = sum_of(cache->of_file[base], address);
}

}  // namespace pitstop::emulator
