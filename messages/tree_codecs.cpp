#include "messages/all_messages.h"
#include "messages/codec_impl.h"

namespace pitstop::messages {

template struct Codecs<TreeMessages>;

}  // namespace pitstop::messages
